// Vercel's AI SDK, unmodified, as the clients of clients.py: node ai_sdk.mjs URL
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "local", baseURL: `${process.argv[2]}/v1`, apiKey: "none", supportsStructuredOutputs: true,
});
const asked = {
  model: provider("smollm2"), prompt: "How is the weather in Paris?",
  temperature: 0, maxOutputTokens: 40, maxRetries: 0,
};
const place = z.object({ city: z.string().max(30) });
const weather = tool({ description: "The weather of a city.", inputSchema: place });

const chat = await generateText(asked);
const stream = [];
for await (const piece of streamText(asked).textStream) stream.push(piece);
const called = await generateText({ ...asked, tools: { weather }, toolChoice: "required" });
const [call] = called.toolCalls;
const typed = await generateObject({ ...asked, schema: place });
console.log(JSON.stringify(
  { chat: chat.text, stream, tool: [call.toolName, call.input], schema: typed.object },
));
