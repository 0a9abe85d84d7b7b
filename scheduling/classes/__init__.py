"""How two service classes share the server: wrappers around a base policy."""
