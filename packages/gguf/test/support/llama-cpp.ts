// This is llama.cpp itself, prebuilt by node-llama-cpp. It judges what a file holds.
import { getLlama, type Llama, LlamaLogLevel, type Token } from 'node-llama-cpp';

/**
 * Opens llama.cpp without a graphics card. Nothing is built or downloaded: without a prebuilt
 * binary this rejects.
 */
export async function openLlama(): Promise<Llama> {
  return getLlama({
    gpu: false,
    build: 'never',
    skipDownload: true,
    progressLogs: false,
    logLevel: LlamaLogLevel.error,
    maxThreads: 1,
  });
}

/** Returns llama.cpp's logits after each of `tokens`. */
export async function llamaLogits(
  llama: Llama,
  options: {
    readonly path: string;
    /** The file of adapters beside it. */
    readonly adapter?: string;
    readonly tokens: readonly number[];
  },
): Promise<Float32Array[]> {
  const { path, adapter, tokens } = options;
  const model = await llama.loadModel({ modelPath: path });
  // Keys and values in f16, the default, would not be this model's.
  const context = await model.createContext({
    contextSize: tokens.length + 1,
    batchSize: tokens.length + 1,
    flashAttention: false,
    ...(adapter === undefined ? {} : { lora: adapter }),
    experimentalKvCacheKeyType: 'F32',
    experimentalKvCacheValueType: 'F32',
  });
  try {
    const results = await context
      .getSequence()
      .controlledEvaluate(
        tokens.map((token) => [token as Token, { generateNext: { logits: true } }]),
      );
    return results.map((result) => {
      const logits = result!.next.logits!;
      return Float32Array.from({ length: logits.size }, (_, id) => logits.get(id as Token)!);
    });
  } finally {
    await context.dispose();
    await model.dispose();
  }
}

/** Returns the ids that llama.cpp gives the tokens of each text, with special tokens recognized. */
export async function tokenIds(
  llama: Llama,
  { path, texts }: { readonly path: string; readonly texts: readonly string[] },
): Promise<number[][]> {
  const model = await llama.loadModel({ modelPath: path, vocabOnly: true });
  try {
    return texts.map((text) => model.tokenize(text, true).map(Number));
  } finally {
    await model.dispose();
  }
}

/**
 * Returns the text that llama.cpp adds to another, always by the likeliest token, until a token
 * that ends it; and all tokens, those of the given text first.
 */
export async function llamaAnswer(
  llama: Llama,
  options: {
    readonly path: string;
    readonly adapter?: string | undefined;
    readonly prompt: string;
    readonly maxTokens: number;
  },
): Promise<{ readonly text: string; readonly tokens: readonly number[] }> {
  const model = await llama.loadModel({ modelPath: options.path });
  const { adapter } = options;
  const lora = adapter === undefined ? {} : { lora: adapter };
  const context = await model.createContext({ contextSize: 256, flashAttention: false, ...lora });
  try {
    const prompt = model.tokenize(options.prompt, true);
    const written: Token[] = [];
    for await (const token of context.getSequence().evaluate(prompt, { temperature: 0 })) {
      if (model.isEogToken(token) || written.length === options.maxTokens) {
        break;
      }
      written.push(token);
    }
    return { text: model.detokenize(written), tokens: [...prompt, ...written].map(Number) };
  } finally {
    await context.dispose();
    await model.dispose();
  }
}

/** Returns llama.cpp's embedding of each text, with the tokens that it puts around a text. */
export async function llamaEmbeddings(
  llama: Llama,
  { path, texts }: { readonly path: string; readonly texts: readonly string[] },
): Promise<(readonly number[])[]> {
  const model = await llama.loadModel({ modelPath: path });
  const context = await model.createEmbeddingContext({ contextSize: 64, batchSize: 64 });
  try {
    const found: (readonly number[])[] = [];
    for (const text of texts) {
      found.push((await context.getEmbeddingFor(text)).vector);
    }
    return found;
  } finally {
    await context.dispose();
    await model.dispose();
  }
}
