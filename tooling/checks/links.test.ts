// Links inside the tree, in documents and READMEs, lead to files and headings that exist.
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, it } from 'vitest';
import { ROOT, trackedFiles } from './workspace.ts';

/** A document's text without its blocks of code, whose brackets are not links. */
function textOf(path: string): string {
  return readFileSync(path, 'utf8').replace(/```.*?```/gs, '');
}

/** The anchors that GitHub makes from a document's headings. */
function anchorsOf(path: string): readonly string[] {
  return [...textOf(path).matchAll(/^#+\s+(.*)$/gm)].map(([, heading = '']) =>
    heading
      .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
      .trim()
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );
}

it('every relative link in a document leads to a file, and its anchor to a heading', () => {
  const links = trackedFiles()
    .filter((path) => path.endsWith('.md'))
    .flatMap((from) =>
      [...textOf(join(ROOT, from)).matchAll(/\]\(([^)\s]+)\)/g)].map(([, to = '']) => ({
        from,
        to,
      })),
    )
    .filter(({ to }) => !/^[a-z]+:/.test(to));
  const isBroken = ({ from, to }: { from: string; to: string }) => {
    const [path = '', anchor] = to.split('#');
    const target = path === '' ? join(ROOT, from) : join(ROOT, dirname(from), path);
    const hasAnchor = anchor === undefined || !target.endsWith('.md');
    return !existsSync(target) || !(hasAnchor || anchorsOf(target).includes(anchor));
  };
  expect(links.length).toBeGreaterThan(100);
  expect(links.filter(isBroken)).toEqual([]);
});
