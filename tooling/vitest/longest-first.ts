// Starts the files that take longest first. On a machine that has not run the tests yet vitest goes
// by the size of the files, and these files are short. Each of them would keep one core busy alone
// if it began last.
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** These take 60 to 10 seconds in a run of all tests on two cores. */
const LONGEST = [
  'apps/trainer/test/reference-losses.test.ts',
  'apps/trainer/test/webgpu-losses.test.ts',
  'tooling/browser/ws-page.test.ts',
  'packages/collectives/test/mpi.test.ts',
  'apps/trainer/test/command.test.ts',
  'tooling/checks/packages.test.ts',
  'tooling/checks/tree.test.ts',
  'packages/tensor-core/test/webgpu-backend.test.ts',
  'packages/collectives/test/conformance.test.ts',
  'tooling/browser/page.test.ts',
  'packages/ddp-buckets/test/parity.test.ts',
  'packages/collectives/test/faults.test.ts',
  'apps/trainer/test/steady-state.test.ts',
  'packages/collectives/test/simulator.test.ts',
  'packages/offload/test/disk.test.ts',
  'packages/ddp-buckets/test/race.test.ts',
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => {
      const index = LONGEST.findIndex((path) => moduleId.endsWith(path));
      return index < 0 ? LONGEST.length : index;
    };
    return (await super.sort(files)).sort((a, b) => place(a) - place(b));
  }
}
