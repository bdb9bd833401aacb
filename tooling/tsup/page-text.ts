// Builds a page as one self-contained text: `index.html` with `page.ts` and `page.css`. Script and
// style are inside, and the page's own policy lets it run these and nothing else.

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { build } from 'esbuild';
import type { MadeModule } from './made-modules.ts';

/** The module that `import { PAGE_HTML } from '.../page/index.html'` loads. */
export async function pageModule(path: string): Promise<MadeModule> {
  const folder = dirname(path);
  const { outputFiles, metafile } = await build({
    entryPoints: [join(folder, 'page.ts'), join(folder, 'page.css')],
    outdir: folder,
    bundle: true,
    minify: true,
    format: 'iife',
    platform: 'browser',
    target: 'es2022',
    conditions: ['@shardweave/source'],
    legalComments: 'inline',
    metafile: true,
    write: false,
    logLevel: 'silent',
  });
  const textOf = (ending: string) => outputFiles.find((file) => file.path.endsWith(ending))!.text;
  // The browser would take a string that looks like the end tag of a script for the end of the
  // script.
  const script = textOf('.js').replaceAll('</script', '<\\/script');
  const style = textOf('.css');
  const policy = [
    "default-src 'none'",
    `script-src '${hashOf(script)}'`,
    `style-src '${hashOf(style)}'`,
    'img-src data:',
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
  ].join('; ');
  const template = await readFile(path, 'utf8');
  const html = template
    .replace(
      '<!-- policy -->',
      () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
    )
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- script -->', () => `<script>${script}</script>`);
  const contents = `export const PAGE_HTML = ${JSON.stringify(html)};`;
  return { contents, inputs: Object.keys(metafile.inputs) };
}

function hashOf(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`;
}
