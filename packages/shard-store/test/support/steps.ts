// These are steps of a training run as the disk store sees them, and the files that they leave.

import { readdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import type { ShardStore, StoreErrorCode } from '@shardweave/shard-store';
import { expect } from 'vitest';

export const KEYS = ['parameter', 'exp_avg', 'exp_avg_sq'];
/** The parameter's length makes two chunks of it; the other values are small. */
export const BYTES = 2 ** 20 + 300;
export const MANIFEST = 'shardweave-manifest';

/**
 * Returns the value of a key in a step. Values of different steps differ, so that a store that
 * mixes steps shows.
 */
export function state(step: number, key = 'parameter'): Buffer {
  return Buffer.alloc(key === 'parameter' ? BYTES : key.length, step);
}

export async function runStep(store: ShardStore, step: number): Promise<void> {
  await Promise.all(KEYS.map((key) => store.write(key, state(step, key))));
  await store.commit();
}

/** Returns the step that a store holds, or throws where no step is there as a whole. */
export async function stepIn(store: ShardStore): Promise<number> {
  const steps = new Set<number>();
  for (const key of KEYS) {
    const value = Buffer.alloc(store.byteLength(key) ?? 0);
    await store.read(key, value);
    expect(value.equals(state(value[0]!, key))).toBe(true);
    steps.add(value[0]!);
  }
  expect([...steps]).toHaveLength(1);
  return [...steps][0]!;
}

/**
 * Leaves a directory as a killed process does. No process was killed, so the lock names this one,
 * which lives, and must go.
 */
export async function forgetOwner(directory: string): Promise<void> {
  const names = (await readdir(directory)).filter((name) => name.startsWith('shardweave-owner.'));
  await Promise.all(names.map((name) => unlink(join(directory, name))));
}

export async function codeOf(promise: Promise<unknown>): Promise<StoreErrorCode | 'resolved'> {
  return promise.then(
    () => 'resolved',
    (error: { code: StoreErrorCode }) => error.code,
  );
}

/** Returns the file with the value of the key with this number. */
export function fileOf(id: number, slot: number): string {
  return `shardweave-00000${id}.${slot}`;
}

export async function slotsIn(directory: string): Promise<readonly string[]> {
  return (await readdir(directory)).filter((name) => /^shardweave-\d{6}\.\d$/.test(name)).sort();
}
