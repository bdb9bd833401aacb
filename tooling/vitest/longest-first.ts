// The files that take longest begin first. On a machine that has not run the tests yet vitest goes
// by the files' sizes, and these are short: begun last, each would keep one core busy alone.
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** In a run of all on two cores, 60 to 10 seconds. */
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
