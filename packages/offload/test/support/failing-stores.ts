// Trains over stores that fail, in a process that no unhandled rejection passes.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { expect } from 'vitest';

/** Lets the last rank's store fail at every `every`-th call, and expects whole generations. */
export async function expectWholeGenerations(every: number): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'shardweave-offload-'));
  try {
    const entry = join(folder, 'failing-store-process.mjs');
    await build({
      entryPoints: [fileURLToPath(new URL('failing-store-process.ts', import.meta.url))],
      outfile: entry,
      bundle: true,
      format: 'esm',
      platform: 'node',
      conditions: ['@shardweave/source'],
      logLevel: 'error',
    });
    const args = ['--unhandled-rejections=strict', entry, String(every)];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const printed = ['', ''];
    for (const [i, stream] of [child.stdout, child.stderr].entries()) {
      stream.on('data', (chunk) => {
        printed[i] += String(chunk);
      });
    }
    await once(child, 'close');
    expect(printed[1]).toBe('');
    expect(printed[0]).toMatch(/^offload: \d+ of \d{2,} calls\nfsdp: \d+ of \d{2,} calls\n$/);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
