// Builds a page as one self-contained text: `index.html` with `page.ts` and `page.css`. Script and
// style are inside, and the page's own policy lets it run these and nothing else.

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { build, type Plugin } from 'esbuild';

const PAGE = /\/page\/index\.html$/;

/** The plugin for esbuild, which tsup uses. */
export const pageText: Plugin = {
  name: 'page-text',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: PAGE }, ({ path, resolveDir }) => ({
      path: join(resolveDir, path),
      namespace: 'page-text',
    }));
    onLoad({ filter: PAGE, namespace: 'page-text' }, async ({ path }) => ({
      contents: await pageModule(path),
      loader: 'js',
    }));
  },
};

/** The module that `import { PAGE_HTML } from '.../page/index.html'` loads. */
async function pageModule(path: string): Promise<string> {
  return `export const PAGE_HTML = ${JSON.stringify(await pageOf(path))};`;
}

async function pageOf(path: string): Promise<string> {
  const folder = dirname(path);
  const { outputFiles } = await build({
    entryPoints: [join(folder, 'page.ts'), join(folder, 'page.css')],
    outdir: folder,
    bundle: true,
    minify: true,
    format: 'iife',
    platform: 'browser',
    target: 'es2022',
    conditions: ['@shardweave/source'],
    legalComments: 'inline',
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
  const html = await readFile(path, 'utf8');
  return html
    .replace(
      '<!-- policy -->',
      () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
    )
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- script -->', () => `<script>${script}</script>`);
}

function hashOf(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`;
}

/** The same plugin for Vite, which runs tests on the sources. */
export const pageTextForVite = {
  name: 'page-text',
  enforce: 'pre' as const,
  resolveId(id: string, importer: string | undefined) {
    return PAGE.test(id) && importer !== undefined ? `\0${join(dirname(importer), id)}.js` : null;
  },
  async load(id: string) {
    return id.startsWith('\0') && PAGE.test(id.slice(1, -3)) ? pageModule(id.slice(1, -3)) : null;
  },
};
