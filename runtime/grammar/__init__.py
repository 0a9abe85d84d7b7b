"""What a request's text must be: its constraint, compiled, and the tokens that it allows next.

llguidance parses grammars and computes masks. A request gets one by `Sampling.constraint`:

    Constraint("json_schema", '{"type": "object", ...}')
    Constraint("regex", "[0-9]{4}")
    Constraint("lark", 'start: "yes" | "no"')

`Grammars.compile` raises GrammarError for one that cannot be served. Nothing here uses torch.
"""
