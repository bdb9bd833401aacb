// What the command attw finds wrong with a package's types, in this process: a command for each
// package would load a TypeScript of its own each time.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

/** What its profile `esm-only` does not look at. */
const LEFT_OUT: readonly unknown[] = ['node10', 'node16-cjs'];

interface Problem {
  readonly kind: string;
  readonly resolutionKind?: string;
}

/** The part of attw's library that the command uses. */
interface Core {
  createPackageFromTarballData(tarball: Uint8Array): unknown;
  checkPackage(made: unknown): Promise<{
    readonly types: unknown;
    readonly problems?: readonly Problem[];
  }>;
}

/** The problems of a packed package for ES modules. */
export async function wrongTypes(tarball: Uint8Array): Promise<readonly Problem[]> {
  const { createPackageFromTarballData, checkPackage } = await core();
  const { types, problems = [] } = await checkPackage(createPackageFromTarballData(tarball));
  if (types === false) {
    return [{ kind: 'NoTypes' }];
  }
  return problems.filter(({ resolutionKind }) => !LEFT_OUT.includes(resolutionKind));
}

/** The library lies beside the command, which is what the workspace depends on. */
function core(): Promise<Core> {
  const command = createRequire(import.meta.url).resolve('@arethetypeswrong/cli/package.json');
  const path = createRequire(command).resolve('@arethetypeswrong/core');
  return import(pathToFileURL(path).href);
}
