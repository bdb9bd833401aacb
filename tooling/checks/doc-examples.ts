// Writes the examples of the packages' docstrings to files, and the programs in their READMEs that
// say what they log.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { libraries, ROOT, sourceFiles } from './workspace.ts';

/** The code of one `@example` or program. */
export type DocExample = {
  /** The folder of the package that documents it, such as `packages/fsdp`. */
  readonly folder: string;
  /** The place of the tag or of the program, as `path:line`. */
  readonly place: string;
  readonly code: string;
  /** The absolute path of the file that contains the code. */
  readonly path: string;
};

type Found = Pick<DocExample, 'place' | 'code'>;

const DOCSTRING = /^[ \t]*\/\*\*[\s\S]*?\*\//gm;
const EXAMPLE = /@example\n```ts\n([\s\S]*?)```/g;
const PROGRAM = /^```ts\n([\s\S]*?)^```/gm;

/** Matches what a line of a program says that it logs. */
export const LOGS = /\/\/ logs (.*)$/gm;

/**
 * Examples as files. Those of docstrings lie in a folder of their package, so that imports resolve
 * as a user's do. Programs of READMEs may import packages that stand above theirs, so they lie
 * here.
 */
export class DocExamples {
  readonly all: readonly DocExample[];
  readonly #folders: string[] = [];

  constructor() {
    this.all = libraries().flatMap((one) => [
      ...this.#write(
        one.folder,
        `${one.folder}/test`,
        sourceFiles(one).flatMap((path) => examplesIn(path)),
      ),
      ...this.#write(one.folder, 'tooling/checks', programsIn(`${one.folder}/README.md`)),
    ]);
  }

  /** Writes what a package's files say into a new folder below `parent`. */
  #write(folder: string, parent: string, found: readonly Found[]): readonly DocExample[] {
    const place = mkdtempSync(join(ROOT, parent, '.readme-'));
    this.#folders.push(place);
    return found.map((one, index) => {
      const path = join(place, `example-${index}.ts`);
      writeFileSync(path, one.code);
      return { folder, ...one, path };
    });
  }

  /** Removes the files. */
  remove(): void {
    for (const folder of this.#folders) {
      rmSync(folder, { recursive: true });
    }
  }
}

/** The examples of a source file; a docstring may have several. */
function examplesIn(path: string): readonly Found[] {
  const source = readFileSync(join(ROOT, path), 'utf8');
  return [...source.matchAll(DOCSTRING)].flatMap((docstring) => {
    const text = docstring[0].replaceAll(/^[ \t]*\* ?/gm, '');
    return [...text.matchAll(EXAMPLE)].map((example) => {
      const before = source.slice(0, docstring.index) + text.slice(0, example.index);
      return { place: `${path}:${before.split('\n').length}`, code: example[1]! };
    });
  });
}

/** The programs of a README that say what they log. Other blocks are parts of programs. */
function programsIn(path: string): readonly Found[] {
  const text = readFileSync(join(ROOT, path), 'utf8');
  return [...text.matchAll(PROGRAM)]
    .filter(([, code]) => code!.match(LOGS) !== null)
    .map((program) => ({
      place: `${path}:${text.slice(0, program.index).split('\n').length}`,
      code: program[1]!,
    }));
}
