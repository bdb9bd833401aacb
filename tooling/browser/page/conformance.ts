// Runs the kernel cases of the backend seam on one device of the page.
import type { Backend, BackendInfo } from '@shardweave/tensor-core';
import { type ConformanceCase, kernelCases } from '@shardweave/tensor-core/testing';
import { firstOfEach } from '../../test-kit/first-of-each.ts';
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

export interface SomeCases {
  /** A pattern for the names of cases that are skipped. */
  readonly leftOut?: string;
  /** Whether a case of each kernel runs in f32, of those that are left. */
  readonly isFirstOfEach?: boolean;
}

const CASES = kernelCases();

export async function runConformance(
  device: PageDevice,
  { leftOut, isFirstOfEach = false }: SomeCases = {},
): Promise<ConformanceResult> {
  const backend = await openBackend(device);
  const pattern = leftOut === undefined ? undefined : new RegExp(leftOut);
  const cases = CASES.filter(({ name }) => pattern?.test(name) !== true);
  try {
    const results = await runCases(backend, isFirstOfEach ? firstOfEach(cases) : cases);
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
