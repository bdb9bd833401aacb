// The files that take longest begin first. On a machine that has not run the tests yet vitest goes by
// the files' sizes, and these are short: begun last, each would keep one core busy alone.
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** In a run of all on two cores, 110 to 20 seconds. */
const LONGEST = [
  'apps/trainer/test/reference-losses.test.ts',
  'apps/trainer/test/webgpu-losses.test.ts',
  'apps/trainer/test/command.test.ts',
  'packages/collectives/test/mpi.test.ts',
  'tooling/checks/packages.test.ts',
  'tooling/browser/page.test.ts',
  'tooling/checks/tree.test.ts',
  'tooling/browser/ws-page.test.ts',
  'packages/collectives/test/conformance.test.ts',
  'packages/tensor-core/test/webgpu-backend.test.ts',
  'packages/collectives/test/faults.test.ts',
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
