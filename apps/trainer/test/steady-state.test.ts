// Many steps of two ranks in one process hold memory flat, and leave none when disposed.

import { createMemoryGroup } from '@shardweave/collectives';
import { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { openData } from '../src/data/dataset.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { parseFlags } from '../src/flags.js';
import { DeviceHost } from '../src/rank/device-host.js';
import { openStrategy } from '../src/rank/strategies/open-strategy.js';
import { TrainingStep } from '../src/rank/training-step.js';
import { resolveConfig } from '../src/resolve-config.js';
import { ROOT } from './fixtures/run-flags.js';
import { whyNoWebGpu } from './fixtures/webgpu-adapter.js';

/** A software driver takes a tenth of a second a step: what grows with steps has grown after these, too. */
const STEPS = { cpu: 100, webgpu: 30 };
/** Buffers of every kind exist after the second step: the first makes the optimizer's state. */
const STEADY_FROM = 2;
const RANKS = 2;

interface Sample {
  readonly live: number;
  readonly peak: number;
  readonly reserved: number;
  readonly buffers: number;
}

/** Memory after each step, by rank, and what is left after dispose. */
async function run(numSteps: number, flags: string) {
  // The reference model, whose pipelines a WebGPU driver has compiled for other tests as well.
  const tiny = `${ROOT}tooling/reference/data/tiny`;
  const line = `--model ${tiny} --data ${tiny}/text.txt --seq 16 --batch 4 ${flags}`;
  const config = await resolveConfig(parseFlags(line.split(' '), () => {}));
  await using opened = await openData(config, await prepareTokens(config, { entry: '' }));
  const data = opened.train;
  await using host = new DeviceHost();
  const worlds = createMemoryGroup(config.ranks);
  const backends = new Set<Awaited<ReturnType<DeviceHost['open']>>>();
  const samples = await Promise.all(
    worlds.map(async (world, rank) => {
      const backend = await host.open(config.devices[rank] === 'webgpu' ? 'webgpu' : 'cpu', {
        threads: 1,
        dtype: 'f32',
      });
      backends.add(backend);
      const device = new Device(backend);
      const groups = { gather: world, reduce: await world.split(0) };
      const strategy = await openStrategy({ device, config, groups });
      const step = new TrainingStep({ config, rank, device, strategy, data, group: world });
      const taken: Sample[] = [];
      for (let s = 0; s < numSteps; s++) {
        device.ledger.resetPeak();
        await step.run(s, 1e-3);
        const { live, peak, reservedBytes: reserved, bufferCount: buffers } = device.memory();
        taken.push({ live: live.total, peak: peak.total, reserved, buffers });
      }
      strategy.optimizer.dispose();
      await strategy.dispose();
      const left = device.memory().live.total;
      device.dispose();
      await world.close();
      return { taken, left };
    }),
  );
  return { samples, usages: [...backends].map((backend) => backend.usage()) };
}

const reason = await whyNoWebGpu();
const CASES = [
  ['cpu', `--device cpu --ranks ${RANKS} --precision bf16 --checkpoint-activations`],
  ['cpu', `--device cpu --ranks ${RANKS} --grad-accum 2 --no-sync --no-reshard --dropout 0.1`],
  ['webgpu', `--device webgpu --ranks ${RANKS}`],
] as const;

describe('many steps', () => {
  for (const [device, flags] of CASES) {
    const skipped = device === 'webgpu' ? reason : undefined;
    const title = skipped === undefined ? flags : `${flags} (${skipped})`;
    it.skipIf(skipped !== undefined)(title, { timeout: 240_000 }, async () => {
      const { samples, usages } = await run(STEPS[device], flags);
      for (const { taken, left } of samples) {
        const steady = taken[STEADY_FROM]!;
        for (const sample of taken.slice(STEADY_FROM)) {
          expect(sample).toEqual(steady);
        }
        expect(left).toBe(0);
      }
      for (const usage of usages) {
        expect(usage).toEqual({ bytes: 0, buffers: 0 });
      }
    });
  }
});
