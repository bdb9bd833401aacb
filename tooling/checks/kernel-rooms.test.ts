// A kernel is found under one name: the file of tensor-core's kernel-calls/ that has its call gives
// its name to the kernel's files in all other rooms. A part of one may be in a file of its own,
// such as attention-mask.ts.
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { expect, it } from 'vitest';
import { ROOT } from './workspace.ts';

interface Room {
  /** The paths of the room's files within the package. */
  readonly files: RegExp;
  /** What begins the names of the room's files. */
  readonly prefix?: string;
  /** How the room's files hold a kernel. */
  readonly holds: (kernel: string) => RegExp;
  /**
   * Whether a kernel may be in a room's other files: those that run it for what they need. A file
   * of the family's name then holds one of its kernels.
   */
  readonly isUser?: boolean;
}

const defined = (kernel: string) => new RegExp(`^export function ${kernel}\\(`, 'm');
const run = (kernel: string) => new RegExp(`\\.run\\('${kernel}'`);
const named = (kernel: string) => new RegExp(`^ *'${kernel}',$|\\.run\\('${kernel}'`, 'm');

const ROOMS: Readonly<Record<string, Room>> = {
  reference: { files: /^src\/backends\/reference\//, holds: defined },
  cpu: { files: /^src\/backends\/cpu\/encode-/, prefix: 'encode-', holds: defined },
  webgpu: { files: /^src\/backends\/webgpu\/kernels\//, holds: defined },
  assembly: { files: /^assembly\//, holds: defined },
  ops: { files: /^src\/ops\//, holds: run, isUser: true },
  cases: { files: /^src\/testing\/cases\//, holds: named, isUser: true },
};
/** The devices without which tsc would miss a kernel. The others have some kernels. */
const DEVICES = ['reference', 'cpu', 'webgpu'];

const PACKAGE = 'packages/tensor-core/';
const texts = new Map(
  ['src', 'assembly'].flatMap((folder) =>
    readdirSync(join(ROOT, PACKAGE, folder), { recursive: true, encoding: 'utf8' })
      .map((path) => `${folder}/${path.replaceAll('\\', '/')}`)
      .filter((path) => path.endsWith('.ts'))
      .map((path): [string, string] => [path, readFileSync(join(ROOT, PACKAGE, path), 'utf8')]),
  ),
);
const families = familiesOfCalls();

it('the calls of kernels are found', () => {
  expect([...families.values()].flat()).toEqual(expect.arrayContaining(['matmul', 'topK', 'sgd']));
});

it.each(Object.entries(ROOMS))('%s has each kernel in a file of its family', (name, room) => {
  const strays = [...families].flatMap(([family, kernels]) => {
    const expected = `${room.prefix ?? ''}${family}`;
    const isOwn = (path: string) =>
      basename(path) === `${expected}.ts` || basename(path).startsWith(`${expected}-`);
    const found = kernels.map((kernel) => ({ kernel, paths: holdersOf(kernel, room) }));
    if (room.isUser) {
      const paths = found.flatMap((one) => one.paths);
      return paths.length === 0 || paths.some(isOwn)
        ? []
        : [sentence(kernels.join(' and '), name, expected, paths)];
    }
    return found
      .filter(({ paths }) => !paths.every(isOwn) || (paths.length === 0 && DEVICES.includes(name)))
      .map(({ kernel, paths }) => sentence(kernel, name, expected, paths));
  });
  expect(strays).toEqual([]);
});

/** The kernels of each file of kernel-calls/: the properties of the interface of calls in it. */
function familiesOfCalls(): Map<string, string[]> {
  const found = [...texts]
    .filter(([path]) => path.startsWith('src/kernel-calls/'))
    .map(([path, text]): [string, string[]] => {
      const calls = /^export interface \w+Calls \{\n([\s\S]*?)^\}/m.exec(text)?.[1] ?? '';
      return [
        basename(path, '.ts'),
        [...calls.matchAll(/^ {2}(\w+): /gm)].map(([, name]) => name!),
      ];
    });
  return new Map(found.filter(([, kernels]) => kernels.length > 0));
}

function holdersOf(kernel: string, room: Room): string[] {
  return [...texts].flatMap(([path, text]) =>
    room.files.test(path) && room.holds(kernel).test(text) ? [path] : [],
  );
}

function sentence(kernel: string, room: string, expected: string, paths: readonly string[]) {
  return `${room}: expected ${kernel} in ${expected}.ts, found it in ${paths.join(' and ') || 'no file'}.`;
}
