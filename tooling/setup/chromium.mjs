// Step `chromium` provides the browser for the page tests. It uses one that it finds, or installs
// Debian's by apt under the rules of system-packages.mjs. Without a browser the page tests skip and
// give the reason.
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { announce } from './step.mjs';
import { aptRefusal, installPackages, linuxRelease } from './system-packages.mjs';

const NAMES = ['chromium', 'google-chrome', 'google-chrome-stable', 'chromium-browser'];
const ELSEWHERE = {
  darwin: [
    '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
    '/Applications/Chromium.app/Contents/MacOS/Chromium',
  ],
  win32: [process.env.PROGRAMFILES, process.env['PROGRAMFILES(X86)'], process.env.LOCALAPPDATA]
    .filter(Boolean)
    .map((folder) => join(folder, 'Google/Chrome/Application/chrome.exe')),
};

/**
 * The path of the browser: SHARDWEAVE_CHROMIUM if it is set, else a well-known path, else
 * undefined.
 */
export function findChromium() {
  if (process.env.SHARDWEAVE_CHROMIUM) {
    return process.env.SHARDWEAVE_CHROMIUM;
  }
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean);
  const onPath = NAMES.flatMap((name) => folders.map((folder) => join(folder, name)));
  return [...onPath, ...(ELSEWHERE[process.platform] ?? [])].find((path) => existsSync(path));
}

/** @returns {Promise<{environment: Record<string, string>}>} variables for the test process */
export async function chromiumForTests() {
  const found = findChromium();
  if (found) {
    return { environment: { SHARDWEAVE_CHROMIUM: found } };
  }
  const reason = installChromium();
  const installed = findChromium();
  if (installed) {
    return { environment: { SHARDWEAVE_CHROMIUM: installed } };
  }
  announce('chromium', `page tests will skip: ${reason}`);
  return { environment: { SHARDWEAVE_NO_CHROMIUM: reason ?? 'apt installed none' } };
}

function installChromium() {
  // On Ubuntu the package of that name only fetches a snap, which needs a running snapd.
  if (linuxRelease()?.id !== 'debian') {
    return 'no Chromium or Chrome was found';
  }
  const refusal = aptRefusal();
  if (refusal) {
    return `no Chromium or Chrome was found, and apt was not used: ${refusal}`;
  }
  return installPackages({ step: 'chromium', packages: ['chromium'] });
}
