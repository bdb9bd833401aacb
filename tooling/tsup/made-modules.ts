// Modules that the build makes out of other files: a page as one text, the novel compressed. They
// are parts of the bundle, so that sources and build reach them by the same import.

import { dirname, join } from 'node:path';
import type { Plugin } from 'esbuild';
import { NOVEL_FOLDER, novelModule } from './novel.mjs';
import { pageModule } from './page-text.ts';

/** The text of a module, and the files that it was made of: whose licenses hold for it. */
export interface MadeModule {
  readonly contents: string;
  readonly inputs: readonly string[];
}

/** What is made, by the end of the import. */
const MAKERS: readonly {
  readonly end: RegExp;
  readonly make: (path: string) => MadeModule | Promise<MadeModule>;
}[] = [
  { end: /\/page\/index\.html$/, make: pageModule },
  {
    end: /\/novel\.txt\.gz$/,
    make: () => ({ contents: novelModule(), inputs: [join(NOVEL_FOLDER, 'package.json')] }),
  },
];
const ENDS = new RegExp(MAKERS.map(({ end }) => end.source).join('|'));

const makerOf = (path: string) => MAKERS.find(({ end }) => end.test(path));

/**
 * The plugin for esbuild, which tsup uses.
 * @param onInputs gets the files that a made module consists of
 */
export function madeModules(onInputs: (paths: readonly string[]) => void = () => {}): Plugin {
  return {
    name: 'made-modules',
    setup({ onResolve, onLoad }) {
      onResolve({ filter: ENDS }, ({ path, resolveDir }) => ({
        path: join(resolveDir, path),
        namespace: 'made-modules',
      }));
      onLoad({ filter: ENDS, namespace: 'made-modules' }, async ({ path }) => {
        const { contents, inputs } = await makerOf(path)!.make(path);
        onInputs(inputs);
        return { contents, loader: 'js' };
      });
    },
  };
}

/** The same plugin for Vite, which runs tests on the sources. */
export const madeModulesForVite = {
  name: 'made-modules',
  enforce: 'pre' as const,
  resolveId(id: string, importer: string | undefined) {
    return makerOf(id) && importer !== undefined ? `\0${join(dirname(importer), id)}.js` : null;
  },
  async load(id: string) {
    const path = id.slice(1, -3);
    return id.startsWith('\0') ? ((await makerOf(path)?.make(path))?.contents ?? null) : null;
  },
};
