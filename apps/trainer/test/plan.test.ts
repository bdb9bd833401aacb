// The command `plan`: a row a strategy, with what a run takes and whether it fits.

import { cpuInfo } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { parseFlags } from '../src/flags.js';
import { type PlanRow, planRows, planText } from '../src/plan/plan-table.js';
import type { Room } from '../src/plan/room.js';
import { resolveConfig } from '../src/resolve-config.js';

const RATES = { products: 1e9, touchedBytes: 1e9, copiedBytes: 1e9, wireBytes: 1e9 };

async function plan(flags: string, room: Partial<Room> = {}): Promise<PlanRow[]> {
  const config = await resolveConfig(parseFlags(`--device cpu ${flags}`.split(' '), () => {}));
  return planRows(config, {
    model: { info: cpuInfo({ threads: 1 }) },
    rates: RATES,
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
    // A parameter, its gradient and two moments, f32.
    expect(offload!.hostBytes).toBeGreaterThan(16 * 102_592 * 0.95);
    const { products, attentionProducts, touchedBytes, copiedBytes } = single!.laterStep;
    const ms = (products + attentionProducts + touchedBytes + copiedBytes) / 1e6;
    expect(rows[0]!.stepMs).toBeCloseTo(ms, 6);
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
});
