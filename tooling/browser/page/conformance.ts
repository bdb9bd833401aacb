// Runs the kernel cases of the backend seam on one device of the page.
import type { Backend, BackendInfo } from '@shardweave/tensor-core';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { openBackend, type PageDevice } from './open-backend.ts';

export type ConformanceResult = {
  readonly description: string;
  readonly limits: BackendInfo['limits'];
  readonly passed: number;
  /** The name and the message of each case that failed. */
  readonly failed: readonly string[];
};

const CASES = kernelCases();

/** @param leftOut a pattern for the names of cases that are skipped */
export async function runConformance(
  device: PageDevice,
  leftOut?: string,
): Promise<ConformanceResult> {
  const backend = await openBackend(device);
  try {
    return await runCases(backend, leftOut === undefined ? undefined : new RegExp(leftOut));
  } finally {
    await backend.dispose();
  }
}

async function runCases(backend: Backend, leftOut?: RegExp): Promise<ConformanceResult> {
  const failed: string[] = [];
  let passed = 0;
  for (const { name, run } of CASES) {
    if (leftOut?.test(name)) {
      continue;
    }
    try {
      await run(backend);
      passed += 1;
    } catch (error) {
      failed.push(`${name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  const { description, limits } = backend.info;
  return { description, limits, passed, failed };
}
