// Step `nodes` provides later versions of Node that the packages are meant for, from the npm
// package `node`.
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { runNpm } from './install.mjs';
import { STATE } from './root.mjs';
import { step } from './step.mjs';

/**
 * The newest version of each line that `engines` allows, besides the version that runs all tests.
 */
export const NODES = ['22.23.3', '24.21.0'];

/** The path of a version's binary. */
export function nodeOf(version) {
  const file = process.platform === 'win32' ? 'node.exe' : 'node';
  return join(folderOf(version), 'node_modules/node/bin', file);
}

export async function installNodes() {
  await step({
    name: 'nodes',
    says: `Node ${NODES.join(' and ')}, from the npm registry`,
    key: NODES.join(),
    isThere: () => NODES.every((version) => existsSync(nodeOf(version))),
    work: async () => {
      for (const version of NODES) {
        mkdirSync(folderOf(version), { recursive: true });
        const quietly = ['--no-save', '--no-audit', '--no-fund'];
        await runNpm('nodes', [
          'install',
          '--prefix',
          folderOf(version),
          ...quietly,
          `node@${version}`,
        ]);
      }
    },
  });
}

function folderOf(version) {
  return join(STATE, 'nodes', version);
}
