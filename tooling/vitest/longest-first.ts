// Starts the files that take longest first, those with a process each before all others. On a
// machine that has not run the tests yet vitest goes by the size of the files, and these files are
// short. Each of them would keep one core busy alone if it began last.
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** These take 25 to 4 seconds in a run of all tests on two cores, and the long one minutes. */
const LONGEST = [
  'apps/trainer/test/elastic-run.test.ts',
  'tooling/checks/packages.test.ts',
  'apps/trainer/test/command.test.ts',
  'tooling/browser/ws-page.test.ts',
  'tooling/checks/tree.test.ts',
  'tooling/deno/deno.test.ts',
  'apps/trainer/test/mpi.test.ts',
  'packages/collectives/test/faults.test.ts',
  'apps/trainer/test/killed-runs.test.ts',
  'apps/trainer/test/dashboard-page.test.ts',
  'packages/collectives/test/shm-threads.test.ts',
  'apps/trainer/test/launch.test.ts',
  'packages/collectives/test/ws-fuzz.test.ts',
  'packages/collectives/test/mpi.test.ts',
  'apps/trainer/test/run-end.test.ts',
  'tooling/browser/page.test.ts',
  'apps/trainer/test/dashboard-index.test.ts',
  'packages/fsdp/test/equals-plain.long.test.ts',
  'packages/tensor-core/test/webgpu-backend.test.ts',
  'packages/collectives/test/conformance.test.ts',
  'apps/trainer/test/resume.test.ts',
  'apps/trainer/test/reference-losses.test.ts',
  'packages/tensor-core/test/ops.test.ts',
  'apps/trainer/test/lora-run.test.ts',
  'tooling/one-hash/one-hash.test.ts',
  'packages/tensor-core/test/cpu-backend.test.ts',
  'apps/trainer/test/examples.long.test.ts',
  'packages/tensor-core/test/kernel-suite.test.ts',
  'packages/tensor-core/test/webgpu-compile.test.ts',
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    // Those with a process each come first, as they do by their group in vitest.config.ts.
    const rank = ({ moduleId, project }: TestSpecification) => {
      const index = LONGEST.findIndex((path) => moduleId.endsWith(path));
      const place = index < 0 ? LONGEST.length : index;
      return project.config.isolate ? place : place + LONGEST.length + 1;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}
