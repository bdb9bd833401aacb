// Finds what the command attw finds wrong with a package's types, but in this process. The command
// would load a TypeScript of its own for each package.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

/** The resolutions that attw's profile `esm-only` ignores. */
const LEFT_OUT: readonly unknown[] = ['node10', 'node16-cjs'];

interface Problem {
  readonly kind: string;
  readonly resolutionKind?: string;
}

/** The part of attw's library that its command uses. */
interface Core {
  createPackageFromTarballData(tarball: Uint8Array): unknown;
  checkPackage(made: unknown): Promise<{
    readonly types: unknown;
    readonly problems?: readonly Problem[];
  }>;
}

/** The problems that a packed package has for users of ES modules. */
export async function wrongTypes(tarball: Uint8Array): Promise<readonly Problem[]> {
  const { createPackageFromTarballData, checkPackage } = await core();
  const { types, problems = [] } = await checkPackage(createPackageFromTarballData(tarball));
  if (types === false) {
    return [{ kind: 'NoTypes' }];
  }
  return problems.filter(({ resolutionKind }) => !LEFT_OUT.includes(resolutionKind));
}

/** Loads the library, which lies beside the command that the workspace depends on. */
function core(): Promise<Core> {
  const command = createRequire(import.meta.url).resolve('@arethetypeswrong/cli/package.json');
  const path = createRequire(command).resolve('@arethetypeswrong/core');
  return import(pathToFileURL(path).href);
}
