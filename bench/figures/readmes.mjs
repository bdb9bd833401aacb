// The figures in READMEs and documents. What lies between `<!-- figures: NAME -->` and `<!--
// /figures -->` is rendered from the newest report of that block and never written by hand. A check
// in tooling/ compares the two.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, posix } from 'node:path';
import { fileURLToPath } from 'node:url';
import { addressOf } from './address.mjs';
import { BLOCKS } from './blocks.mjs';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
export const REPORTS = fileURLToPath(new URL('../reports', import.meta.url));
const BLOCK = /^<!-- figures: (\S+) -->\n[\s\S]*?<!-- \/figures -->/gm;

/** The files that may contain figures, relative to the root. */
export function readmePaths() {
  const inside = (folder) => readdirSync(join(ROOT, folder));
  return [
    'README.md',
    'CONTRIBUTING.md',
    'examples/README.md',
    ...['packages', 'apps'].flatMap((parent) =>
      inside(parent).map((name) => `${parent}/${name}/README.md`),
    ),
    ...readdirSync(join(ROOT, 'docs'), { recursive: true })
      .filter((name) => name.endsWith('.md'))
      .map((name) => `docs/${name.replaceAll('\\', '/')}`),
  ];
}

/** `text` without its blocks of figures. */
export function withoutFigures(text) {
  return text.replaceAll(BLOCK, '');
}

/** The names of the blocks in a text. */
export function blocksIn(text) {
  return [...text.matchAll(BLOCK)].map(([, name]) => name);
}

/** The text of the file `path` in which every block shows its newest report. */
export function rendered(path, text) {
  return text.replaceAll(
    BLOCK,
    (_, name) => `<!-- figures: ${name} -->\n\n${render(path, name)}\n\n<!-- /figures -->`,
  );
}

/** The content of one block. Where nothing has been measured yet, it says what would measure it. */
function render(path, name) {
  const block = BLOCKS[name];
  if (block === undefined) {
    throw new Error(`${path}: expected one of ${Object.keys(BLOCKS).join(', ')}, got ${name}`);
  }
  const report = newestReport(block.report);
  if (report === undefined) {
    return `Not measured: \`${commandOf(block)}\` does.`;
  }
  const run = JSON.parse(readFileSync(join(REPORTS, report), 'utf8'));
  const page = `bench/reports/${report.replace(/\.json$/, '.md')}`;
  const isPacked = /^(?:packages|apps)\//.test(path);
  const link = isPacked ? addressOf(page) : posix.relative(posix.dirname(path), page);
  return block.render(run, link).trim();
}

/** The command that writes the report of a block. */
function commandOf({ command, report }) {
  return `node ${command} --report bench/reports/DATE-${report}.md`;
}

/** The newest file of the report with this name. */
function newestReport(name) {
  const pattern = new RegExp(`^\\d{4}-\\d\\d-\\d\\d-${name}\\.json$`);
  return readdirSync(REPORTS)
    .filter((file) => pattern.test(file))
    .sort()
    .at(-1);
}

/** Renders the blocks in all files, and returns the files that changed. */
export function renderReadmes() {
  return readmePaths().filter((path) => {
    const file = join(ROOT, path);
    const old = readFileSync(file, 'utf8');
    const text = rendered(path, old);
    if (text !== old) {
      writeFileSync(file, text);
    }
    return text !== old;
  });
}
