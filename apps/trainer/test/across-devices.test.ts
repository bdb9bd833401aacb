// A save is independent of devices. A run that is resumed on the other kind of device has the
// losses of the run that stayed, as closely as two devices agree.

import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { worstRatio } from './support/run-flags.js';
import { lossesOf, runLine, tinyFlags } from './support/tiny-run.js';
import { whyNoWebGpu } from './support/webgpu-adapter.js';

const TOLERANCE = 2e-4;
const isLong = process.env.SHARDWEAVE_LONG === '1';
const NUM_BEFORE = isLong ? 3 : 2;
const STEPS = 2 * NUM_BEFORE;

/** With SHARDWEAVE_LONG=1 one process goes on with what one process saved. */
const SINGLE = [
  ['cpu', 'webgpu', 'single', 'single'],
  ['webgpu', 'cpu', 'single', 'single'],
];

const reason = await whyNoWebGpu();
const root = newFolder();

describe.skipIf(reason !== undefined)(`a save${reason === undefined ? '' : ` (${reason})`}`, () => {
  it.each([
    ['cpu', 'webgpu', 'fsdp --ranks 2', 'ddp --ranks 2'],
    ['webgpu', 'cpu', 'ddp --ranks 2', 'fsdp --ranks 3'],
    ...(isLong ? SINGLE : []),
  ])(
    'the save of %s goes on on %s (%s, %s)',
    { timeout: 240_000 },
    async (from, to, before, after) => {
      // These flags have dropout, whose masks are equal on both devices.
      const flags = `${tinyFlags(root)} --lr 0.02 --schedule constant`;
      const out = join(root, `${from}-${before.split(' ')[0]}`);
      const on = (device: string, more: string) => runLine(`${flags} --device ${device} ${more}`);
      await on(from, `--strategy ${before} --steps ${NUM_BEFORE} --save-every 99 --out ${out}`);
      const [stayed, moved] = [
        await on(from, `--strategy ${before} --steps ${STEPS}`),
        await on(to, `--strategy ${after} --steps ${STEPS} --resume ${out}`),
      ];
      expect(moved.ready.map(({ device }) => device)).toEqual(moved.ready.map(() => to));
      expect(moved.resumed?.step).toBe(NUM_BEFORE);
      const rest = lossesOf(stayed).slice(NUM_BEFORE);
      expect(worstRatio(lossesOf(moved), rest)).toBeLessThan(TOLERANCE);
      // The losses of another state, that of one step before, are further away than that.
      expect(
        worstRatio(lossesOf(moved), lossesOf(stayed).slice(NUM_BEFORE - 1, -1)),
      ).toBeGreaterThan(10 * TOLERANCE);
    },
  );
});
