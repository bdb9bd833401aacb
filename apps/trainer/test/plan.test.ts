// The command `plan` prints a row for each strategy, with what a run takes and whether it fits.

import { cpuInfo, type KernelCalls, type View } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { resolveConfig } from '../src/config/resolve-config.js';
import { planHeaderLines } from '../src/output/header.js';
import { keyOfCall, partOf } from '../src/plan/kernel-times.js';
import { leftBytes, leftText } from '../src/plan/left-bytes.js';
import { type PlanRow, planRows, planText } from '../src/plan/plan-table.js';
import { type StepClock, stepMs } from '../src/plan/rates.js';
import type { Room } from '../src/plan/room.js';
import { parseFlags } from './support/parse-flags.js';

/** A device whose kernels take a millisecond each. */
const CLOCK: StepClock = {
  stepMs: async ({ kernels }, { ranks }) =>
    ranks * [...kernels.values()].reduce((sum, { count }) => sum + count, 0),
};

async function plan(
  flags: string,
  room: Partial<Room> = {},
  linkBits?: number,
): Promise<PlanRow[]> {
  const config = await resolveConfig(parseFlags(`--device cpu ${flags}`.split(' '), () => {}));
  return planRows(config, {
    model: { info: cpuInfo({ threads: 1 }) },
    clock: CLOCK,
    linkBits,
    room: ({ ranks }) => ({ deviceBytes: 2 ** 32, hostBytes: 2 ** 34, ranksHere: ranks, ...room }),
  });
}

describe('plan', () => {
  it('has what each strategy takes, on one rank or several', async () => {
    const rows = await plan('--model nano --ranks 3');
    expect(rows.map(({ strategy, ranks }) => [strategy, ranks])).toEqual([
      ['single', 1],
      ['fsdp', 3],
      ['ddp', 3],
      ['offload', 1],
    ]);
    expect(rows.every(({ complaint, isTight }) => complaint === undefined && !isTight)).toBe(true);
    const [single, fsdp, ddp, offload] = rows.map(({ run }) => run!);
    expect(fsdp!.restBytes.parameter * 3).toBeGreaterThanOrEqual(single!.restBytes.parameter);
    expect(fsdp!.restBytes.parameter * 2).toBeLessThan(single!.restBytes.parameter);
    expect(ddp!.laterStep.bytesSent).toBeGreaterThan(0);
    expect(offload!.restBytes.total).toBe(0);
    // Each parameter has its value, its gradient and two moments, all f32.
    expect(offload!.hostBytes).toBeGreaterThan(16 * 102_592 * 0.95);
    expect(rows[0]!.stepMs).toBe(single!.laterStep.kernels);
    expect(rows[1]!.stepMs).toBe(3 * fsdp!.laterStep.kernels);
  });

  it('begins with the model, the rows and the device that its numbers are for', async () => {
    const flags = '--device cpu --model nano --batch 7 --grad-accum 2 --precision bf16';
    const config = await resolveConfig(parseFlags(flags.split(' '), () => {}));
    const [model, data, step, device, leaves] = planHeaderLines(config, {
      description: 'wasm simd, 2 threads',
      leaves: leftText(await leftBytes(config), config),
    });
    expect(model).toMatch(/^model {3}nano: \d+ layers, width \d+/);
    expect(data).toBe('data    Moby Dick');
    expect(step).toMatch(/^step {4}7 rows of \d+ tokens in 2 micro-steps, bf16$/);
    expect(device).toBe('device  cpu (wasm simd, 2 threads), shared by all ranks');
    expect(leaves).toMatch(/^leaves {2}model\/ \d+ KiB, records \d+ KiB$/);
  });

  it('says what does not fit, and what might not', async () => {
    const [single] = await plan('--model nano');
    const { bufferBytes } = single!.run!;
    const rows = await plan('--model nano', { deviceBytes: bufferBytes });
    expect(rows[0]).toMatchObject({ complaint: undefined, isTight: true });
    const less = await plan('--model nano', { deviceBytes: bufferBytes - 1 });
    expect(less[0]!.complaint).toMatch(/^a rank takes .* on its device/);
    const text = planText(less);
    expect(text).toMatch(/^single +no /m);
    expect(text).toMatch(/^fsdp x 2 +yes /m);
    expect(text).toMatch(/^single: a rank takes .*\.$/m);
  });

  it('says what a link between hosts takes, and what keeps it least busy', async () => {
    const base = '--model nano --ranks 2 --lora-rank 2';
    const [single, fsdp, ddp, offload] = await plan(base, {}, 1e6);
    expect([single, offload].map((row) => row!.linkMs)).toEqual([0, 0]);
    for (const row of [fsdp, ddp]) {
      expect(row!.linkMs).toBeCloseTo(row!.run!.laterStep.bytesSent * 0.008, 9);
    }
    const text = planText([single!, fsdp!, ddp!, offload!]);
    expect(text).toMatch(/wire a step +on the link +a step$/m);
    expect(text).toMatch(
      /^Least on the link in a step: ddp x 2 \d.* \(.*\); fsdp x 2 .*\. single and offload need no/m,
    );
    expect(planText(await plan(base))).not.toContain('link');
  });

  it('times the kernels of all micro-steps, of which it runs three', async () => {
    const [few, many] = await Promise.all(
      [3, 7].map((gradAccum) => plan(`--model nano --batch 7 --grad-accum ${gradAccum}`)),
    );
    for (const [few1, many1] of few!.map((row, i) => [row.run!, many![i]!.run!] as const)) {
      const count = ({ kernels }: typeof few1) =>
        [...kernels.values()].reduce((sum, one) => sum + one.count, 0);
      expect(count(few1)).toBe(few1.laterStep.kernels);
      expect(count(many1)).toBe(many1.laterStep.kernels);
      expect(count(many1)).toBeGreaterThan(count(few1));
    }
  });
});

describe('what is timed of a kernel', () => {
  const view = (size: number): View => ({
    ...{ buffer: { id: size, byteLength: 4 * size }, byteOffset: 0, dtype: 'f32', size },
  });

  it('is a part of a large one, by which the whole is told', () => {
    const matmul = { a: view(1), b: view(1), out: view(1), bias: undefined, m: 4096, n: 4096 };
    const product = { ...matmul, k: 1024, batch: [1, 1] } as unknown as KernelCalls['matmul'];
    const { call, times } = partOf('matmul', product);
    expect(times).toBeGreaterThan(16);
    expect((call as typeof product).m * times).toBeCloseTo(4096, 6);
    const fill = partOf('fill', { out: view(2 ** 22), value: 0 });
    expect(fill).toMatchObject({ call: { out: { size: 2 ** 20 } }, times: 4 });
    const segments = [
      { start: 0, length: 2 ** 21, group: 0 },
      { start: 2 ** 21, length: 2 ** 20, group: 1 },
    ];
    const adam = partOf('adam', {
      param: view(3 * 2 ** 20),
      segments,
    } as unknown as KernelCalls['adam']);
    expect(adam.times).toBe(3);
    expect(adam.call).toMatchObject({
      param: { size: 2 ** 20 },
      segments: [{ start: 0, length: 2 ** 20, group: 0 }],
    });
  });

  it('is all of a small one', () => {
    const fill = { out: view(1000), value: 0 };
    expect(partOf('fill', fill)).toEqual({ call: fill, times: 1 });
  });

  it('is known by its shape, not by where it works and what it draws', () => {
    const one = keyOfCall('fill', { out: view(8), value: 0 });
    const moved = { ...view(8), byteOffset: 64, buffer: { id: 9, byteLength: 999 } };
    expect(keyOfCall('fill', { out: moved, value: 0 })).toBe(one);
    expect(keyOfCall('fill', { out: view(9), value: 0 })).not.toBe(one);
  });
});

describe('the time of a step', () => {
  it('has kernels of all ranks on the cores that they share, and copies of those in one thread', async () => {
    const [, fsdp] = await plan('--model nano --ranks 2');
    const { run } = fsdp!;
    const { copiedBytes, bytesSent } = run!.laterStep;
    const rates = { copiedBytes: 1e9, wireBytes: 1e8 };
    const hostMs = copiedBytes / 1e6 + bytesSent / 2e5;
    const of = (transport: 'memory' | 'ws') =>
      stepMs(run!, { ranks: 2, transport }, { rates, ms: 10 });
    expect(of('memory')).toBeCloseTo(20 + 2 * hostMs, 6);
    expect(of('ws')).toBeCloseTo(20 + hostMs, 6);
  });
});
