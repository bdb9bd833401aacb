// A run of twelve steps with saves on a disk of some size: wherever the disk fills up, its model is
// whole in a place that is known, or a sentence says with paths and bytes that it is nowhere.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { SignalError } from '../../src/errors.js';
import { pathOf, stepsIn } from '../../src/files/save-directory.js';
import { problemIn } from '../../src/inspect/holding.js';
import { Interrupt } from '../../src/interrupt.js';
import { runCli } from './run-cli.js';
import type { SmallDisk } from './small-disk.js';

export type Kept = 'under --out' | 'elsewhere' | 'refused';

/** The arguments of the run, whose model and text are those of tinyFlags. */
export const twelveSteps = (tiny: string, out: string) =>
  `train ${tiny} --steps 12 --save-every 3 --strategy single --out ${out}`.split(' ');

/** @param model the weights of the run on a disk with room for everything */
export async function expectKept(disk: SmallDisk, tiny: string, model: Uint8Array): Promise<Kept> {
  const out = join(disk.path, 'run');
  const interrupt = new Interrupt({ exit: () => {} });
  const { code, err } = await runCli(twelveSteps(tiny, out), {
    interrupt,
    onErr: (text) => {
      if (text.includes('Make room: the run waits')) {
        interrupt.ask(new SignalError('SIGINT'));
      }
    },
  });
  const weights = join(out, 'model/model.safetensors');
  const files = existsSync(out) ? readdirSync(out, { recursive: true }).map(String) : [];
  expect(files.filter((name) => name.endsWith('.part'))).toEqual([]);
  for (const step of await stepsIn(join(out, 'saves'))) {
    expect(await problemIn(pathOf(join(out, 'saves'), step))).toBeUndefined();
  }
  if (code === 0) {
    expect(readFileSync(weights).equals(model)).toBe(true);
    return 'under --out';
  }
  expect(code).toBe(1);
  expect(existsSync(join(out, 'model'))).toBe(false);
  expect(err).toMatch(/error: \S+\/run\/model takes \S+ .?i?B, where \S+ .?i?B are free/);
  const place = /It is whole in (\S+) instead/.exec(err)?.[1];
  if (place === undefined) {
    expect(files).toEqual([]); // It was refused before its first step.
    return 'refused';
  }
  expect(readFileSync(join(place, 'model.safetensors')).equals(model)).toBe(true);
  return 'elsewhere';
}
