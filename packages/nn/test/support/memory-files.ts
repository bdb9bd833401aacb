// A model's files in memory, with counts of the bytes that are read of each.

import type { ByteSource, ModelFile, ModelFiles } from '@shardweave/nn';
import { expect } from 'vitest';

export class MemoryFile implements ByteSource {
  readonly bytes: Uint8Array;
  bytesRead = 0;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }

  get byteLength(): number {
    return this.bytes.byteLength;
  }

  async read(into: Uint8Array, { offset }: { readonly offset: number }): Promise<void> {
    this.bytesRead += into.byteLength;
    into.set(this.bytes.subarray(offset, offset + into.byteLength));
  }
}

export class MemoryFiles extends Map<string, MemoryFile> implements ModelFiles {
  async open(name: string): Promise<MemoryFile | undefined> {
    return this.get(name);
  }

  async write(name: string, pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>) {
    const all: Uint8Array[] = [];
    for await (const piece of pieces) {
      all.push(piece);
    }
    this.set(name, new MemoryFile(new Uint8Array(Buffer.concat(all))));
  }

  text(name: string): string {
    return new TextDecoder().decode(this.get(name)!.bytes);
  }
}

/** Writes files that have the lengths that they say. */
export async function filesWith(all: readonly ModelFile[]): Promise<MemoryFiles> {
  const files = new MemoryFiles();
  for (const { name, byteLength, pieces } of all) {
    await files.write(name, pieces());
    expect([name, files.get(name)!.bytes.byteLength]).toEqual([name, byteLength]);
  }
  return files;
}
