// Step `nodes`: the later Node versions that the packages are for, out of the npm package `node`.
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { runNpm } from './install.mjs';
import { STATE } from './root.mjs';
import { step } from './step.mjs';

/** The newest of each line that `engines` allows beside the one that runs all tests. */
export const NODES = ['22.23.3', '24.21.0'];

/** Where the binary of a version is. */
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
