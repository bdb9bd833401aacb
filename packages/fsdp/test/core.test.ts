// The core of fsdp runs over ranks in one process, on the CPU and on WebGPU, and over processes
// linked by sockets.

import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { onRanks } from '../../../tooling/test-kit/index.ts';
import { bundle, RunningProgram } from '../../../tooling/test-kit/processes.ts';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { CORE_CASES } from './support/core-cases.js';

let directory = '';
beforeEach(async () => {
  directory = newFolder();
});

describe('over two ranks of one process, on the CPU', () => {
  it.each(CORE_CASES)('$name', ({ run }) => onRanks(2, (rank) => run(rank, directory)));
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
  const ranks: RunningProgram[] = [];
  afterAll(() => {
    for (const rank of ranks) {
      rank.kill();
    }
  });

  it('every case passes on both, and both end by themselves', async () => {
    const program = await bundle(new URL('support/core-process.ts', import.meta.url));
    const start = (rank: string, port: string) => {
      const started = new RunningProgram(program, [directory, rank, port]);
      ranks.push(started);
      return started;
    };
    const first = start('0', '0');
    const port = await first.line(/^port (\d+)$/);
    const ended = await Promise.all([first.ended, start('1', port).ended]);
    const printed = CORE_CASES.map(({ name }) => `passed ${name}`);
    expect(ended).toMatchObject([
      { exitCode: 0, printed: [`port ${port}`, ...printed], complained: '' },
      { exitCode: 0, printed, complained: '' },
    ]);
  });
});
