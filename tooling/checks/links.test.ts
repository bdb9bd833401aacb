// Links inside the tree, in documents and READMEs, lead to files and headings that exist. READMEs
// of packages name documents by the repository's address, since npm shows them where there is no
// tree.
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { expect, it } from 'vitest';
import { publishedPackages, ROOT, trackedFiles } from './workspace.ts';

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

const { homepage } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
const ADDRESS = new RegExp(`^${homepage.split('#')[0]}/(?:blob|tree)/main/`);

/** A link by the repository's address as one that is relative to `from`. */
function relativeLink(from: string, to: string): string {
  return ADDRESS.test(to) ? join(relative(dirname(from), '.'), to.replace(ADDRESS, '')) : to;
}

it('every link from a document into the tree leads to a file, and its anchor to a heading', () => {
  const links = trackedFiles()
    .filter((path) => path.endsWith('.md'))
    .flatMap((from) =>
      [...textOf(join(ROOT, from)).matchAll(/\]\(([^)\s]+)\)/g)].map(([, to = '']) => ({
        from,
        to: relativeLink(from, to),
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

it('each row of the glossary leads to a file that has its words', () => {
  const folder = join(ROOT, 'docs');
  const rows = readFileSync(join(folder, 'glossary.md'), 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('| ') && !/^\| (?:word|---) /.test(line))
    .map((line) =>
      line
        .slice(1, -1)
        .split('|')
        .map((cell) => cell.trim()),
    );
  const faults = rows.flatMap((cells) => {
    const [, path = ''] = /\]\(([^)\s]+)\)$/.exec(cells.at(-1)!) ?? [];
    const place = join(folder, path);
    if (path === '' || cells.length !== 6 || !existsSync(place)) {
      return [`${cells[0]}: expected six cells, the last one with a link to a file, got '${path}'`];
    }
    const source = readFileSync(place, 'utf8');
    const words = [...cells[0]!.matchAll(/`([^`]+)`/g)].map(([, word = '']) => word);
    return words
      .filter((word) => !new RegExp(`\\b${word}\\b`).test(source))
      .map((word) => `'${word}' is not in ${path}`);
  });
  expect(rows.length).toBeGreaterThan(40);
  expect(faults).toEqual([]);
});

it("a package's README links what is outside it by the repository's address", () => {
  const strays = publishedPackages().flatMap(({ folder }) =>
    [...textOf(join(ROOT, folder, 'README.md')).matchAll(/\]\(([^)\s]+)\)/g)]
      .map((match) => `${folder}: ${match[1]}`)
      .filter((link) => !/: (?:#|[a-z]+:)/.test(link)),
  );
  expect(strays).toEqual([]);
});

it("a package's README names no document without a link to it", () => {
  const names = publishedPackages().flatMap(({ folder }) =>
    [
      ...textOf(join(ROOT, folder, 'README.md'))
        .replace(/\[[^\]]*\]\([^)]*\)/g, '')
        .matchAll(/\bdocs\/[\w/-]+\.md/g),
    ].map(([name]) => `${folder}: ${name}`),
  );
  expect(names).toEqual([]);
});
