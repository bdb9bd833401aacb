// Kills a command at a moment of its life, gives its line again, and compares what it leaves with
// what it leaves where it is not killed.

import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { StepMetrics } from '../../src/rank/events.js';
import { finishRun, killRun, type Moment } from './killed-run.js';
import { tinyFlags, told } from './tiny-run.js';

/** The moments of a life from its first millisecond to its last, by their names. */
export const LIFE = {
  'in its first millisecond': { afterMs: 0 },
  'while Node starts': { afterMs: 40 },
  'as --out is made': { seen: /^/ },
  'as it has its lock': { seen: /^shardweave-owner\.1\.\d/ },
  'as its first file is there': { seen: /^events\.jsonl$/ },
  'before its first step': { seen: /^config\.yaml$/ },
  'behind its first step': { lines: 1 },
  'as its first save is written': { savingFrom: 2, numFiles: 1 },
  'behind its first save': { seen: /^saves\/step-000002$/ },
  'between saves': { lines: 3 },
  'as its last save is written': { savingFrom: 4, numFiles: 0 },
  'behind its last save': { seen: /^saves\/step-000004$/ },
  'as its model is written': { seen: /^model\b/ },
  'as its model is there': { seen: /^model$/ },
  'as its results are written': { seen: /^loss\.svg\b/ },
  'as it ends': { seen: /^summary\.json$/ },
} as const satisfies Record<string, Moment>;

/** Returns the line of a run that saves twice, in a new directory under `root`. */
export function lifeFlags(root: string, out: string, transport: string): string {
  return `${tinyFlags(root)} --ranks 2 --steps 4 --save-every 2 --valid-fraction 0.2 --eval-every 3 --quiet --transport ${transport} --out ${out} --resume auto`;
}

export interface Ended {
  readonly metrics: unknown;
  readonly model: Buffer;
  readonly names: readonly string[];
}

/** Returns what a run has left, but for what depends on the clock. */
export function endOf(out: string): Ended {
  const lines = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
  const steps = lines.map((line) => JSON.parse(line) as StepMetrics);
  return {
    metrics: told({ steps } as unknown as Parameters<typeof told>[0]),
    model: readFileSync(join(out, 'model/model.safetensors')),
    names: [...readdirSync(out), ...readdirSync(join(out, 'saves'))].sort(),
  };
}

/** Expects the end `whole` of a line that is killed once and given again. */
export async function expectSameEnd(
  script: string,
  flags: string,
  options: { readonly out: string; readonly at: Moment; readonly whole: Ended },
): Promise<void> {
  const { out, at, whole } = options;
  await killRun(script, flags.split(' '), { out, at });
  const { code, said } = await finishRun(script, flags.split(' '));
  expect([code, said]).toEqual([0, '']);
  expect(endOf(out)).toEqual(whole);
  rmSync(out, { recursive: true });
}
