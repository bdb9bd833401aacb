// The core of fsdp runs over ranks in one process, on the CPU and on WebGPU, and over processes
// linked by sockets.

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/vitest/webgpu-device.ts';
import { CORE_CASES } from './support/core-cases.js';
import { onRanks } from './support/ranks.js';

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'shardweave-core-'));
});
afterEach(async () => {
  await rm(directory, { recursive: true, force: true });
});

describe('over two ranks of one process, on the CPU', () => {
  it.each(CORE_CASES)('$name', async ({ run }) => {
    await onRanks(2, (rank) => run(rank, directory));
  });
});

describe.skipIf(noWebGpu !== undefined)('over two ranks of one process, on WebGPU', () => {
  const opened = noWebGpu === undefined ? openWebGpu() : undefined;
  afterAll(async () => (await opened)?.dispose());

  it.each(CORE_CASES)('$name', async ({ run }) => {
    const backend = (await opened)!;
    await onRanks(
      2,
      async (rank) => {
        try {
          await run(rank, directory);
        } finally {
          rank.device.dispose();
        }
      },
      { backend },
    );
  });
});

describe('over two processes that are linked by sockets, on the CPU', () => {
  const ranks: RankProcess[] = [];
  let program = '';
  let home = '';
  beforeAll(async () => {
    home = await mkdtemp(join(tmpdir(), 'shardweave-core-'));
    program = join(home, 'program.mjs');
    await build({
      entryPoints: [fileURLToPath(new URL('support/core-process.ts', import.meta.url))],
      conditions: ['@shardweave/source'],
      alias: { vitest: fileURLToPath(new URL('support/outside-vitest.ts', import.meta.url)) },
      external: ['bufferutil', 'utf-8-validate', 'koffi'],
      // The CommonJS packages in the bundle call require.
      banner: {
        js: "import { createRequire as bundleRequire } from 'node:module'; const require = bundleRequire(import.meta.url);",
      },
      bundle: true,
      format: 'esm',
      platform: 'node',
      target: 'node20',
      logLevel: 'error',
      outfile: program,
    });
  });
  afterAll(async () => {
    for (const rank of ranks) {
      rank.kill();
    }
    await rm(home, { recursive: true, force: true });
  });

  it('every case passes on both, and both end by themselves', async () => {
    const first = new RankProcess(program, [directory, '0', '0']);
    ranks.push(first);
    const port = await first.line(/^port (\d+)$/);
    const second = new RankProcess(program, [directory, '1', port]);
    ranks.push(second);
    const ended = await Promise.all([first.ended, second.ended]);
    const passed = CORE_CASES.map(({ name }) => `passed ${name}`);
    expect(ended).toEqual([
      { exitCode: 0, printed: [`port ${port}`, ...passed], complained: '' },
      { exitCode: 0, printed: passed, complained: '' },
    ]);
  });
});

/** This is one rank as a process. */
class RankProcess {
  readonly ended: Promise<{ exitCode: number | null; printed: string[]; complained: string }>;
  readonly #printed: string[] = [];
  readonly #child: ChildProcess;

  constructor(program: string, args: readonly string[]) {
    const child = spawn(process.execPath, [program, ...args]);
    this.#child = child;
    let complained = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      complained += text;
    });
    createInterface(child.stdout).on('line', (line) => {
      this.#printed.push(line);
    });
    this.ended = new Promise((resolve) => {
      child.on('close', (exitCode) => {
        resolve({ exitCode, printed: this.#printed, complained });
      });
    });
  }

  /** Ends the process if it has not ended by itself. */
  kill(): void {
    this.#child.kill('SIGKILL');
  }

  /** Resolves with the group of `pattern` once a line matches. */
  async line(pattern: RegExp): Promise<string> {
    for (;;) {
      for (const text of this.#printed) {
        const found = pattern.exec(text)?.[1];
        if (found !== undefined) {
          return found;
        }
      }
      await new Promise<void>((resolve) => {
        this.#child.stdout!.once('data', () => resolve());
        this.#child.once('close', () => resolve());
      });
      if (this.#child.exitCode !== null) {
        throw new Error((await this.ended).complained);
      }
    }
  }
}
