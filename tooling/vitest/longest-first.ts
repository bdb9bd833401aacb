// Starts the files that take longest first, those with a process each before all others. On a
// machine that has not run the tests yet vitest goes by the size of the files, and these files are
// short. Each of them would keep one core busy alone if it began last.
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** These take 30 to 6 seconds in a run of all tests on two cores. */
const LONGEST = [
  'apps/trainer/test/elastic-run.test.ts',
  'tooling/checks/packages.test.ts',
  'apps/trainer/test/command.test.ts',
  'tooling/browser/ws-page.test.ts',
  'apps/trainer/test/killed-runs.test.ts',
  'apps/trainer/test/mpi.test.ts',
  'tooling/deno/deno.test.ts',
  'packages/collectives/test/faults.test.ts',
  'apps/trainer/test/dashboard-page.test.ts',
  'tooling/checks/tree.test.ts',
  'packages/collectives/test/shm-threads.test.ts',
  'packages/collectives/test/mpi.test.ts',
  'tooling/browser/page.test.ts',
  'packages/tensor-core/test/webgpu-backend.test.ts',
  'apps/trainer/test/reference-losses.test.ts',
  'packages/collectives/test/conformance.test.ts',
  'apps/trainer/test/resume.test.ts',
  'packages/tensor-core/test/ops.test.ts',
  'packages/tensor-core/test/webgpu-compile.test.ts',
  'apps/trainer/test/lora-run.test.ts',
  'packages/tensor-core/test/kernel-suite.test.ts',
  'tooling/one-hash/one-hash.test.ts',
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    // A process in which files run one after another ends where the next file wants its own, and
    // all that it has warmed up is lost.
    const rank = ({ moduleId, project }: TestSpecification) => {
      const index = LONGEST.findIndex((path) => moduleId.endsWith(path));
      const place = index < 0 ? LONGEST.length : index;
      return project.config.isolate ? place : place + LONGEST.length + 1;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}
