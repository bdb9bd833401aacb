// The licenses of what a bundle takes out of other packages: most demand that their text goes where
// the code goes.

import { mkdirSync, readdirSync, readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Plugin } from 'esbuild';
import { madeModules } from './made-modules.ts';

const FILE = 'third-party-notices.txt';
const PACKAGE = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/;

/**
 * Makes the modules that the build makes, and writes beside the bundle the license of each package
 * that is in it.
 */
export function madeModulesWithLicenses(): Plugin {
  const paths: string[] = [];
  const made = madeModules((inputs) => void paths.push(...inputs));
  return {
    name: made.name,
    async setup(build) {
      await made.setup(build);
      build.onEnd(({ metafile }) => {
        const inputs = [...paths, ...Object.keys(metafile?.inputs ?? {})];
        const folder = build.initialOptions.outdir!;
        mkdirSync(folder, { recursive: true }); // tsup writes the bundle itself, and later
        writeFileSync(join(folder, FILE), licensesOf(inputs));
      });
    },
  };
}

/** The licenses of the packages that files belong to, by name. */
function licensesOf(paths: readonly string[]): string {
  const folders = paths.flatMap((path) => PACKAGE.exec(path.replaceAll('\\', '/'))?.[0] ?? []);
  const texts = new Map(
    [...new Set(folders.map((folder) => realpathSync(folder)))].map((folder) => {
      const { name, version, license } = JSON.parse(
        readFileSync(join(folder, 'package.json'), 'utf8'),
      );
      const files = readdirSync(folder).filter((file) => /^(?:licen[cs]e|notice)/i.test(file));
      if (files.length === 0) {
        throw new Error(`${name}: expected a file with its license (${license}) in ${folder}`);
      }
      const text = files.map((file) => readFileSync(join(folder, file), 'utf8').trim());
      return [name, [`${name} ${version} (${license})`, ...text].join('\n\n')];
    }),
  );
  const parts = [...texts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, text]) => text);
  return `${parts.join(`\n\n${'-'.repeat(80)}\n\n`)}\n`;
}
