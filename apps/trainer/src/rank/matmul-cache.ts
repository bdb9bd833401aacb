// Which matmul tiles are fastest on an adapter, kept in the user's cache between runs. A GPU's first
// run measures them after its work is done, so that no start waits for it; rank 0 does it for all.

import { readFile, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { DType } from '@shardweave/tensor-core';
import type { MatmulChoiceTable, WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { z } from 'zod';
import { makeDirectory } from '../output/make-directory.js';

const TABLE = z.record(z.string(), z.string());

export class MatmulCache {
  readonly #folder: string;

  /** @param folder default: `shardweave` in the user's cache folder */
  constructor(folder: string = defaultFolder()) {
    this.#folder = folder;
  }

  /** What was measured on an adapter for `dtype`; undefined before that. */
  async read(adapter: string, dtype: DType): Promise<MatmulChoiceTable | undefined> {
    try {
      return TABLE.parse(JSON.parse(await readFile(this.#path(adapter, dtype), 'utf8')));
    } catch {
      return undefined; // missing or damaged: measured anew
    }
  }

  /**
   * Measures unless it has been done. Takes seconds on a GPU, but minutes where a driver compiles
   * slowly, which software drivers do: they go without.
   */
  async measure(backend: WebGpuBackend, dtype: DType): Promise<void> {
    const { description, isSoftware } = backend.info;
    if (isSoftware || (await this.read(description, dtype)) !== undefined) {
      return;
    }
    const table = await backend.tuneMatmul({ dtypes: [dtype] });
    makeDirectory(this.#folder);
    await writeFile(this.#path(description, dtype), `${JSON.stringify(table, null, 2)}\n`);
  }

  #path(adapter: string, dtype: DType): string {
    const name = adapter.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
    return join(this.#folder, `tiles-${dtype}-${name}.json`);
  }
}

function defaultFolder(): string {
  const { XDG_CACHE_HOME, LOCALAPPDATA } = process.env;
  return join(XDG_CACHE_HOME || LOCALAPPDATA || join(homedir(), '.cache'), 'shardweave');
}
