// Writes the examples of the packages' docstrings to files.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { libraries, ROOT, sourceFiles } from './workspace.ts';

/** The code of one `@example`. */
export type DocExample = {
  /** The package's folder, such as `packages/fsdp`. */
  readonly folder: string;
  /** The place of the tag, as `path:line`. */
  readonly place: string;
  readonly code: string;
  /** The absolute path of the file that contains the code. */
  readonly path: string;
};

const DOCSTRING = /^[ \t]*\/\*\*[\s\S]*?\*\//gm;
const EXAMPLE = /@example\n```ts\n([\s\S]*?)```/g;

/**
 * Examples as files. Each one lies in a folder of its package, so that imports resolve as a user's
 * do.
 */
export class DocExamples {
  readonly all: readonly DocExample[];
  readonly #folders: readonly string[];

  constructor() {
    const found = libraries().map((one) => {
      const folder = mkdtempSync(join(ROOT, one.folder, 'test/.readme-'));
      const examples = sourceFiles(one).flatMap((path) => examplesIn(path));
      const written = examples.map(({ place, code }, index) => {
        const path = join(folder, `example-${index}.ts`);
        writeFileSync(path, code);
        return { folder: one.folder, place, code, path };
      });
      return { folder, written };
    });
    this.all = found.flatMap(({ written }) => written);
    this.#folders = found.map(({ folder }) => folder);
  }

  /** Removes the files. */
  remove(): void {
    for (const folder of this.#folders) {
      rmSync(folder, { recursive: true });
    }
  }
}

/** The examples of a source file; a docstring may have several. */
function examplesIn(path: string): readonly { readonly place: string; readonly code: string }[] {
  const source = readFileSync(join(ROOT, path), 'utf8');
  return [...source.matchAll(DOCSTRING)].flatMap((docstring) => {
    const text = docstring[0].replaceAll(/^[ \t]*\* ?/gm, '');
    return [...text.matchAll(EXAMPLE)].map((example) => {
      const before = source.slice(0, docstring.index) + text.slice(0, example.index);
      return { place: `${path}:${before.split('\n').length}`, code: example[1]! };
    });
  });
}
