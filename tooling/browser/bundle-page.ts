// Bundles a page for headless Chromium as a user's bundler would. Nothing is external. Each entry
// becomes a file of its own beside the page, and the page runs the first one.
import { build } from 'esbuild';

export interface BundlePageOptions {
  /** Export conditions; default: those that a user's bundler has. */
  readonly conditions?: string[];
}

/** The page's files by their path on the server. `entries` maps their names there to scripts. */
export async function bundlePage(
  entries: Readonly<Record<string, string>>,
  { conditions = [] }: BundlePageOptions = {},
): Promise<ReadonlyMap<string, string | Uint8Array>> {
  const [main] = Object.keys(entries);
  const { outputFiles } = await build({
    entryPoints: { ...entries },
    outdir: '/',
    bundle: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    conditions,
    write: false,
    logLevel: 'silent',
  });
  const html =
    `<!doctype html><meta charset="utf-8"><title>${main}</title>` +
    `<link rel="icon" href="data:,"><script type="module" src="/${main}.js"></script>`;
  const files = new Map<string, string | Uint8Array>([['/index.html', html]]);
  for (const { path, contents } of outputFiles) {
    files.set(`/${path.split(/[/\\]/).at(-1)}`, contents);
  }
  return files;
}
