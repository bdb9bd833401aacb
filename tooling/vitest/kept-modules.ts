// Vitest keeps what a file became for Node, so that later runs import in a third of the time. It
// knows a file again by its path and text. Two things it is told here: a made module's text is in
// no file, and where imports lead stands in the manifests as well.
import type { VitestPluginContext } from 'vitest/node';
import { type WorkspacePackage, workspacePackages } from '../checks/workspace.ts';

type Key = (module: { readonly id: string }) => string | false;

/** What the key of a module has beside its path and text, or false where it is not kept. */
export function moduleKeys(packages: readonly WorkspacePackage[]): Key {
  const manifests = JSON.stringify(packages);
  return ({ id }) => (id.startsWith('\0') ? false : manifests);
}

/** A plugin for vitest's `experimental.fsModuleCache`. */
export const keptModules = {
  name: 'kept-modules',
  configureVitest({ experimental_defineCacheKeyGenerator: define }: VitestPluginContext) {
    define(moduleKeys(workspacePackages()));
  },
};
