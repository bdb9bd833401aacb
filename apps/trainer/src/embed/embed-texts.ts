// Embeds texts chunk by chunk as they are read, and writes the vectors as they come, so that memory
// holds a chunk, whatever the number of texts.

import { EventEmitter, once } from 'node:events';
import { writePieces } from '../files/write-file.js';
import type { TerminalStream } from '../output/terminal.js';
import type { TextEmbedder } from './text-embedder.js';
import type { TextLine, TextSource } from './text-lines.js';
import { npyHeader, type VectorChunk, vectorLines } from './vector-file.js';

export interface EmbedTextsOptions {
  readonly prompt: string;
  readonly chunkSize: number;
  readonly signal: AbortSignal;
  /** Called behind each chunk, with its last text. */
  readonly onChunk: (last: TextLine) => void;
}

/** The texts and their vectors, so many at once. */
export async function* vectorChunks(
  source: TextSource,
  embedder: TextEmbedder,
  { prompt, chunkSize, signal, onChunk }: EmbedTextsOptions,
): AsyncGenerator<VectorChunk> {
  let lines: TextLine[] = [];
  const embedded = async (): Promise<VectorChunk> => {
    const chunk = lines;
    lines = [];
    const rows = await embedder.embed({ texts: chunk, prompt });
    signal.throwIfAborted();
    return { lines: chunk, rows };
  };
  for await (const line of source.lines()) {
    lines.push(line);
    if (lines.length === chunkSize) {
      yield await embedded();
      onChunk(line);
    }
  }
  if (lines.length > 0) {
    const last = lines.at(-1)!;
    yield await embedded();
    onChunk(last);
  }
}

/** Writes the vectors as a NumPy array, whole or not at all. Throws as writePieces does. */
export async function writeArray(
  path: string,
  chunks: AsyncIterable<VectorChunk>,
  { width, signal }: { readonly width: number; readonly signal: AbortSignal },
): Promise<void> {
  let count = 0;
  const pieces = async function* () {
    yield npyHeader(count, width); // its bytes are kept free
    for await (const { rows } of chunks) {
      count += rows.count;
      const { buffer, byteOffset, byteLength } = rows.values;
      yield new Uint8Array(buffer, byteOffset, byteLength);
    }
  };
  await writePieces(path, pieces(), { signal, head: () => npyHeader(count, width) });
}

/** Lines of JSON for all texts, a chunk of them at a time. */
export async function* linesOf(chunks: AsyncIterable<VectorChunk>): AsyncGenerator<string> {
  for await (const chunk of chunks) {
    yield vectorLines(chunk);
  }
}

export interface LinesPlace {
  /** A file; undefined: the output. */
  readonly path: string | undefined;
  readonly out: TerminalStream;
  readonly signal: AbortSignal;
}

/** Writes texts into a file, whole or not at all, or as they come to the output. */
export async function writeLines(
  texts: AsyncIterable<string>,
  { path, out, signal }: LinesPlace,
): Promise<void> {
  if (path !== undefined) {
    await writePieces(path, encoded(texts), { signal });
    return;
  }
  for await (const text of texts) {
    // A pipe to a slow reader would be filled in this process's memory.
    if (out.write(text) === false && out instanceof EventEmitter) {
      await once(out, 'drain', { signal }).catch((cause: unknown) => {
        signal.throwIfAborted();
        throw cause;
      });
    }
  }
}

async function* encoded(texts: AsyncIterable<string>): AsyncGenerator<Uint8Array> {
  for await (const text of texts) {
    yield Buffer.from(text);
  }
}
