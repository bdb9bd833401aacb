// Runs the kernel cases of the backend seam on one device of the page.
import type { Backend, BackendInfo } from '@shardweave/tensor-core';
import { type ConformanceCase, kernelCases } from '@shardweave/tensor-core/testing';
import { openBackend, type PageDevice } from './open-backend.ts';

export interface CaseResults {
  readonly passed: readonly string[];
  /** What each failed case said, by name. */
  readonly failed: Readonly<Record<string, string>>;
}

export type ConformanceResult = CaseResults & {
  readonly description: string;
  readonly limits: BackendInfo['limits'];
};

const CASES = kernelCases();

/** @param leftOut a pattern for the names of cases that are skipped */
export async function runConformance(
  device: PageDevice,
  leftOut?: string,
): Promise<ConformanceResult> {
  const backend = await openBackend(device);
  const pattern = leftOut === undefined ? undefined : new RegExp(leftOut);
  try {
    const results = await runCases(
      backend,
      CASES.filter(({ name }) => pattern?.test(name) !== true),
    );
    const { description, limits } = backend.info;
    return { description, limits, ...results };
  } finally {
    await backend.dispose();
  }
}

/** Runs cases one after another. `onBegin` gets the name of each before it runs. */
export async function runCases(
  backend: Backend,
  cases: Iterable<ConformanceCase>,
  onBegin: (name: string) => void = () => {},
): Promise<CaseResults> {
  const passed: string[] = [];
  const failed: Record<string, string> = {};
  for (const { name, run } of cases) {
    onBegin(name);
    try {
      await run(backend);
      passed.push(name);
    } catch (error) {
      failed[name] = error instanceof Error ? error.message : String(error);
    }
  }
  return { passed, failed };
}
