// ggml's own functions, out of the library that node-llama-cpp brings prebuilt: the judge of blocks
// and of the types that llama.cpp gives tensors. Nothing is built or downloaded.

import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { type BlockType, decodeBlocks, encodeBlocks } from '@shardweave/dtypes/blocks';

/** What these tests use of koffi: functions of C by their declarations. */
interface Koffi {
  load(path: string): { func(declaration: string): (...args: readonly unknown[]) => unknown };
  struct(name: string, fields: Readonly<Record<string, string>>): unknown;
  proto(declaration: string): unknown;
  pointer(type: unknown): unknown;
  register(call: () => void, type: unknown): unknown;
}

const TYPE_IDS: Readonly<Record<BlockType, number>> = {
  q4_0: 2,
  q4_1: 3,
  q5_0: 6,
  q5_1: 7,
  q8_0: 8,
  q4_K: 12,
  q5_K: 13,
  q6_K: 14,
};

/** The packages of node-llama-cpp that run without a graphics card. */
const PREBUILT: Readonly<Record<string, string>> = {
  'linux-x64': 'linux-x64',
  'linux-arm64': 'linux-arm64',
  'darwin-x64': 'mac-x64',
  'darwin-arm64': 'mac-arm64-metal',
  'win32-x64': 'win-x64',
  'win32-arm64': 'win-arm64',
};

// koffi and node-llama-cpp are devDependencies of packages/gguf, and are looked for from there.
const fromGguf = createRequire(new URL('../../packages/gguf/package.json', import.meta.url));

const found = findLibraries();

/** Why there is no ggml here; undefined where there is. */
export const noGgml = typeof found === 'string' ? found : undefined;

/** Encodes rows of 256 numbers as ggml does without an importance matrix. */
export function ggmlEncode(type: BlockType, values: Float32Array): Uint8Array {
  const bytes = new Uint8Array(values.length * 2);
  const rows = values.length / 256;
  const length = functions().encode(TYPE_IDS[type], values, bytes, 0, rows, 256, null) as bigint;
  return bytes.subarray(0, Number(length));
}

/**
 * Returns the root of the mean squared error of our blocks, as a part of that of ggml's own:
 * 1.02 is the most that issue 37 allows.
 */
export function errorBesideGgml(type: BlockType, values: Float32Array): number {
  const errorOf = (bytes: Uint8Array) => {
    const decoded = new Float32Array(values.length);
    decodeBlocks(type, bytes, decoded);
    return Math.sqrt(decoded.reduce((sum, value, i) => sum + (value - values[i]!) ** 2, 0));
  };
  return errorOf(encodeBlocks(type, values)) / errorOf(ggmlEncode(type, values));
}

/** Returns the first number that is not ggml's to the bit; -1 where all are. */
export function firstUnlikeGgml(type: BlockType, bytes: Uint8Array, count: number): number {
  const ours = new Uint32Array(count);
  const theirs = new Uint32Array(count);
  decodeBlocks(type, bytes, new Float32Array(ours.buffer));
  functions().decode[type](bytes, new Float32Array(theirs.buffer), count);
  return ours.findIndex((bits, i) => bits !== theirs[i]);
}

/**
 * Writes a GGUF file in another type, which llama.cpp chooses for each tensor.
 * @param fileType the format's number for it, `general.file_type`
 */
export function llamaQuantize(
  from: string,
  options: { readonly to: string; readonly fileType: number },
): void {
  const { defaults, quantize } = functions();
  const parameters = { ...(defaults() as object), nthread: 1, ftype: options.fileType };
  const code = quantize(from, options.to, parameters);
  if (code !== 0) {
    throw new Error(`llama_model_quantize: ${String(code)} for ${from}`);
  }
}

function findLibraries(): { readonly base: string; readonly llama: string } | string {
  const name = PREBUILT[`${process.platform}-${process.arch}`];
  try {
    const fromLlama = createRequire(fromGguf.resolve('node-llama-cpp'));
    const main = fromLlama.resolve(`@node-llama-cpp/${name}`);
    const bins = join(dirname(main), '..', 'bins');
    const folder = join(bins, readdirSync(bins)[0]!);
    const file = (pattern: RegExp) =>
      join(folder, readdirSync(folder).find((one) => pattern.test(one))!);
    return { base: file(/^(lib)?ggml-base\./), llama: file(/^(lib)?llama\./) };
  } catch {
    return `no ggml prebuilt for ${process.platform}-${process.arch}`;
  }
}

let opened: ReturnType<typeof open> | undefined;

function functions() {
  opened ??= open();
  return opened;
}

function open() {
  if (typeof found === 'string') {
    throw new Error(found);
  }
  const koffi = fromGguf('koffi') as Koffi;
  const base = koffi.load(found.base);
  const llama = koffi.load(found.llama);
  const decoder = (type: BlockType) =>
    base.func(`void dequantize_row_${type}(const void *, _Out_ float *, int64_t)`);
  // The fields after these are pointers and switches whose defaults stay; it has room for more.
  koffi.struct('QuantizeParameters', { nthread: 'int', ftype: 'int', rest: 'uint8_t[248]' });
  const silent = koffi.proto('void LlamaLog(int, const char *, void *)');
  const setLog = llama.func('void llama_log_set(LlamaLog *, void *)');
  setLog(
    koffi.register(() => {}, koffi.pointer(silent)),
    null,
  );
  return {
    encode: base.func(
      'size_t ggml_quantize_chunk(int, const float *, _Out_ void *, int64_t, int64_t, int64_t, void *)',
    ),
    decode: Object.fromEntries(
      (Object.keys(TYPE_IDS) as BlockType[]).map((type) => [type, decoder(type)]),
    ) as Readonly<Record<BlockType, ReturnType<typeof decoder>>>,
    defaults: llama.func('QuantizeParameters llama_model_quantize_default_params()'),
    quantize: llama.func(
      'uint32_t llama_model_quantize(const char *, const char *, const QuantizeParameters *)',
    ),
  };
}
