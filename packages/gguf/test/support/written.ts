// These functions return files as bytes, and as an independent reader finds them.
import { gguf } from '@huggingface/gguf';
import type { GgufFile } from '@shardweave/gguf';

/** Returns all bytes of a file. */
export async function bytesOf(file: GgufFile): Promise<Uint8Array> {
  const all: Uint8Array[] = [];
  for await (const piece of file.pieces()) {
    all.push(Uint8Array.from(piece));
  }
  return Buffer.concat(all);
}

/**
 * Reads a file with @huggingface/gguf. The metadata comes without the types of the keys that it
 * knows.
 */
export async function readGguf(path: string) {
  const { metadata, ...rest } = await gguf(path, { allowLocalFile: true });
  return { ...rest, metadata: metadata as unknown as Readonly<Record<string, unknown>> };
}
