// Trains over stores that fail, in a process that no unhandled rejection passes.

import { expect } from 'vitest';
import { bundle, RunningProgram } from '../../../../tooling/test-kit/processes.ts';

/** Lets the last rank's store fail at every `every`-th call, and expects whole generations. */
export async function expectWholeGenerations(every: number): Promise<void> {
  const program = await bundle(new URL('failing-store-process.ts', import.meta.url));
  const child = new RunningProgram(program, [String(every)], ['--unhandled-rejections=strict']);
  const { complained, printed } = await child.ended;
  expect(complained).toBe('');
  expect(printed).toEqual([
    expect.stringMatching(/^offload: \d+ of \d{2,} calls$/),
    expect.stringMatching(/^fsdp: \d+ of \d{2,} calls$/),
  ]);
}
