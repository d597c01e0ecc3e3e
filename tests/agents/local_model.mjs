// A small local model behind OpenAI's chat completions: node local_model.mjs MODEL.gguf, with node-llama-cpp installed
// in the working directory. Prints its port. With a JSON schema the answer is bound to it by a grammar; no tools.
import {createServer} from "node:http";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(`${process.cwd()}/`);
const {getLlama, LlamaChatSession} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1});
const model = await llama.loadModel({modelPath: process.argv[2]});

async function answer(asked) {
  const context = await model.createContext({contextSize: 2048});
  const [system, ...rest] = asked.messages;
  const session = new LlamaChatSession({contextSequence: context.getSequence(), systemPrompt: system.content});
  const schema = asked.response_format?.json_schema?.schema;
  const grammar = schema && (await llama.createGrammarForJsonSchema(schema));
  const prompt = rest.map((each) => each.content).join("\n\n");
  const most = asked.max_completion_tokens ?? asked.max_tokens;
  const {responseText, stopReason} = await session.promptWithMeta(prompt, {grammar, maxTokens: most, temperature: 0});
  await context.dispose();
  const count = (text) => model.tokenize(text).length;
  return {
    id: "local", object: "chat.completion", created: 0, model: asked.model,
    choices: [{
      index: 0, message: {role: "assistant", content: responseText},
      finish_reason: stopReason === "maxTokens" ? "length" : "stop",
    }],
    usage: {prompt_tokens: count(system.content + prompt), completion_tokens: count(responseText)},
  };
}

const server = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const say = (status, body) => {
    response.writeHead(status, {"content-type": "application/json"});
    response.end(JSON.stringify(body));
  };
  try {
    const asked = JSON.parse(Buffer.concat(parts));
    if (asked.tools) say(400, {error: {message: "tools are not supported"}});
    else say(200, await answer(asked));
  } catch (error) {
    say(400, {error: {message: String(error)}});
  }
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
