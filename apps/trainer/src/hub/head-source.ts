// A file of which the bytes that are read are kept, so that it can be read again without the rest.

import { open, rename } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { ByteSource } from '@shardweave/nn';
import { makeDirectory } from '../files/make-directory.js';

interface Part {
  readonly offset: number;
  readonly bytes: Uint8Array;
}

export class HeadSource implements ByteSource {
  readonly byteLength: number;
  readonly #source: ByteSource;
  /** The first bytes, as far as they have been read. */
  #head = new Uint8Array();
  /** What was read behind them. */
  readonly #parts: Part[] = [];

  constructor(source: ByteSource) {
    this.byteLength = source.byteLength;
    this.#source = source;
  }

  /** Throws as the source does. */
  async read(into: Uint8Array, { offset }: { readonly offset: number }): Promise<void> {
    const start = this.#head.byteLength;
    const end = offset + into.byteLength;
    if (offset > start) {
      await this.#source.read(into, { offset });
      this.#parts.push({ offset, bytes: into.slice() });
      return;
    }
    if (end > start) {
      const grown = new Uint8Array(end);
      grown.set(this.#head);
      await this.#source.read(grown.subarray(start), { offset: start });
      this.#head = grown;
    }
    into.set(this.#head.subarray(offset, end));
  }

  /**
   * Writes what was read into a file as long as the source, with holes for the rest. They take no
   * room on file systems that know them.
   */
  async keep(path: string): Promise<void> {
    makeDirectory(dirname(path));
    const part = `${path}.${process.pid}.incomplete`; // two commands may write one file at once
    const file = await open(part, 'w');
    try {
      for (const { offset, bytes } of [{ offset: 0, bytes: this.#head }, ...this.#parts]) {
        for (let done = 0; done < bytes.byteLength; ) {
          const rest = bytes.subarray(done);
          done += (await file.write(rest, 0, rest.byteLength, offset + done)).bytesWritten;
        }
      }
      await file.truncate(this.byteLength);
    } finally {
      await file.close();
    }
    await rename(part, path);
  }
}
