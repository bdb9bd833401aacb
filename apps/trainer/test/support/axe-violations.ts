// The rules of axe that a page breaks.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { Page } from 'playwright-core';

/** The rules of axe that the page breaks, with the elements that break them. */
export async function axeViolations(page: Page): Promise<string[]> {
  const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
  // The script goes in by the debugging protocol, which the page's policy for scripts does not
  // apply to.
  await page.evaluate(readFileSync(axe, 'utf8'));
  return page.evaluate(async () => {
    const { axe: checker } = window as unknown as {
      axe: { run(): Promise<{ violations: { id: string; nodes: { html: string }[] }[] }> };
    };
    const { violations: found } = await checker.run();
    return found.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`));
  });
}
