// A run that cannot fit is refused before anything is made. Close to the limit, a run that is
// allowed works, and one that is refused would fail.

import { rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createMemoryGroup } from '@shardweave/collectives';
import { cpuInfo, Device, LimitError } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { UsageError } from '../src/errors.js';
import { dryData } from '../src/plan/dry-data.js';
import { requireRoom, tryRun } from '../src/plan/require-room.js';
import { type Room, roomHere } from '../src/plan/room.js';
import type { RankReport } from '../src/rank/events.js';
import { TrainingStep } from '../src/rank/step/training-step.js';
import { openStrategy } from '../src/rank/strategies/open-strategy.js';
import type { RunConfig } from '../src/run-config.js';
import { parseFlags } from './support/parse-flags.js';
import { runFlags } from './support/run-flags.js';

const MIB = 2 ** 20;
const isLong = process.env.SHARDWEAVE_LONG === '1';

const configOf = (flags: string) =>
  resolveConfig(parseFlags(`--device cpu ${flags}`.split(' '), () => {}));
const roomOf = (deviceBytes: number): Room => ({ deviceBytes, hostBytes: 1e12, ranksHere: 1 });

/** Returns the message with which a run is refused. */
async function refusal(flags: string, room: Room): Promise<string> {
  const error: unknown = await requireRoom(await configOf(flags), room).catch((thrown) => thrown);
  expect(error).toBeInstanceOf(UsageError);
  return (error as Error).message;
}

/** Takes two steps with one rank on a real device whose pool is limited to `limitBytes`. */
async function runUnder(limitBytes: number, config: RunConfig): Promise<void> {
  const backend = await createCpuBackend({ threads: 0 });
  const device = new Device(backend);
  device.pool.limitBytes = limitBytes;
  const [group] = createMemoryGroup(1);
  const groups = { gather: group!, reduce: group! };
  try {
    const strategy = await openStrategy({ device, config, groups });
    await strategy.initialize();
    const data = dryData(config);
    const step = new TrainingStep({ config, rank: 0, device, strategy, data, group: group! });
    for (const index of [0, 1]) {
      await step.run(index, config.lr);
    }
    await device.synchronize();
  } finally {
    await group!.close();
    device.dispose();
    await backend.dispose();
  }
}

describe('a run at the edge of its memory', () => {
  it.each([
    '--model micro --strategy single --batch 4 --seq 32 --clip 0.001',
    '--model nano --strategy single --batch 4 --seq 32 --precision bf16 --checkpoint-activations',
    '--model nano --strategy offload --batch 4 --seq 32',
  ])('fits to the byte: %s', async (flags) => {
    const config = await configOf(flags);
    const { run } = await tryRun(config, {
      rank: 0,
      model: { info: cpuInfo({ threads: 1 }) },
      room: roomOf(4096 * MIB),
    });
    const { bufferBytes } = run!;
    await runUnder(bufferBytes, config);
    await expect(runUnder(bufferBytes - 1, config)).rejects.toThrow(LimitError);
    await requireRoom(config, roomOf(bufferBytes));
    await expect(requireRoom(config, roomOf(bufferBytes - 1))).rejects.toThrow(UsageError);
  });

  it('ends at --device-budget, where there is one: a byte less is refused', async () => {
    const flags = '--model nano --strategy offload --batch 4 --seq 32 --device-budget';
    const refused = await refusal(`${flags} 100000`, roomOf(4096 * MIB));
    const [, least] = /less than the (\d+) bytes that '[^']+' takes/.exec(refused)!;
    await requireRoom(await configOf(`${flags} ${least}`), roomOf(4096 * MIB));
    await expect(
      requireRoom(await configOf(`${flags} ${Number(least) - 1}`), roomOf(4096 * MIB)),
    ).rejects.toThrow(UsageError);
    await runUnder(Number.POSITIVE_INFINITY, await configOf(`${flags} ${least}`));
  });
});

describe('a run that does not fit', () => {
  it('is told what it takes, with flags that fit', async () => {
    const flags = '--model micro --strategy single --batch 8 --seq 64';
    const message = await refusal(flags, roomOf(12 * MIB));
    expect(message).toMatch(/^room: the run does not fit: a rank takes \d\d\.\d MiB on its device/);
    const ways = [...message.matchAll(/(--[^(;]*) \(/g)].map(([, way]) => way!);
    expect(ways).toHaveLength(3);
    for (const way of ways) {
      await requireRoom(await configOf(`${flags} ${way}`), roomOf(12 * MIB));
    }
  });

  it('a run that nothing would make fit says so', async () => {
    expect(await refusal('--model micro', roomOf(1))).toMatch(/Nothing that was tried fits here/);
  });

  it('is one beyond the memory of the host, too', async () => {
    const room = { deviceBytes: 4096 * MIB, hostBytes: 10 * MIB, ranksHere: 2 };
    expect(await refusal('--model micro --ranks 2', room)).toMatch(
      /2 ranks take \d+(\.\d)? MiB of this host's memory, of which 10\.0 MiB are free/,
    );
    // Processes of their own come on top.
    const wide = { ...room, hostBytes: 200 * MIB };
    await requireRoom(await configOf('--model micro --ranks 2'), wide);
    expect(await refusal('--model micro --ranks 2', { ...wide, isApart: true })).toMatch(
      /2 ranks take \d+ MiB of this host's memory with 95\.4 MiB of each process, of which 200 MiB/,
    );
  });

  it('is one beyond the disk of --offload-dir, which holds two files a value', async () => {
    const directory = join(newFolder(), 'to', 'come');
    const flags = `--model nano --strategy offload --steps 2 --batch 2 --seq 16 --offload-dir ${directory}`;
    const config = await configOf(flags);
    const free = roomHere(config, 'cpu');
    const { bavail, bsize } = statfsSync(tmpdir());
    expect(free.diskBytes! / (bavail * bsize)).toBeCloseTo(1, 1);
    const { reports } = await runFlags(`--device cpu --quiet ${flags}`.split(' '));
    const [{ diskBytes }] = reports as [RankReport];
    // The next run deletes what this one leaves.
    expect(roomHere(config, 'cpu').diskBytes! / (bavail * bsize + diskBytes)).toBeCloseTo(1, 1);
    const two = { ...roomOf(4096 * MIB), ranksHere: 2 };
    await requireRoom(config, { ...two, diskBytes: 2 * diskBytes });
    expect(await refusal(flags, { ...two, diskBytes: 2 * diskBytes - 1 })).toMatch(
      /2 ranks take \S+ MiB of the disk of --offload-dir, of which \S+ MiB are free: make room there/,
    );
    rmSync(dirname(dirname(directory)), { recursive: true });
  });

  it('is no matter of the command where the ranks are on GPUs', async () => {
    const config = { ...(await configOf('--model micro')), device: ['webgpu', 'webgpu'] as const };
    await requireRoom(config, roomOf(1));
  });

  const refused = [
    ['gpt2-medium', /a rank takes 5\.\d GiB on its device .* What fits: /],
    ['gpt2-xl', /a rank takes 19\.\d GiB on its device .* What fits: /],
  ] as const;
  it.each(isLong ? refused : refused.slice(0, 1))(
    'is refused by the command, at %s before a text is read',
    async (model, told) => {
      await expect(
        runFlags(`--device cpu --model ${model} --ranks 2 --data /nowhere`.split(' ')),
      ).rejects.toThrow(told);
    },
  );
});
