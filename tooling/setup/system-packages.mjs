// Installs packages of Debian and Ubuntu for the tests by apt where that is allowed: as root or
// with password-less sudo, and not with SHARDWEAVE_NO_APT=1. `npm run train` never uses it.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { announce } from './step.mjs';

const SOURCES = '/etc/apt/sources.list.d';
const BACKPORTS = `${SOURCES}/shardweave-backports.sources`;
const LOCK_WAIT_S = 120; // another apt, such as a machine's first unattended upgrade, may hold the lock

/** The content of /etc/os-release; undefined where there is none. */
export function linuxRelease() {
  if (process.platform !== 'linux' || !existsSync('/etc/os-release')) {
    return undefined;
  }
  const text = readFileSync('/etc/os-release', 'utf8');
  const field = (name) => new RegExp(`^${name}="?([^"\\n]*)`, 'm').exec(text)?.[1] ?? '';
  const names = [field('ID'), ...field('ID_LIKE').split(' ')];
  return {
    id: field('ID'),
    version: field('VERSION_ID'),
    codename: field('VERSION_CODENAME'),
    hasApt: names.some((name) => name === 'debian' || name === 'ubuntu'),
  };
}

/** Why apt may not or cannot be used here, as half a sentence; undefined where it can. */
export function aptRefusal() {
  if (!linuxRelease()?.hasApt) {
    return 'this is not Debian or Ubuntu';
  }
  if (process.env.SHARDWEAVE_NO_APT === '1') {
    return 'SHARDWEAVE_NO_APT=1 is set';
  }
  if (process.getuid() === 0) {
    return undefined;
  }
  const sudo = spawnSync('sudo', ['-n', 'true'], { stdio: 'ignore' });
  return sudo.status === 0 ? undefined : 'it needs root or password-less sudo';
}

/**
 * Installs packages for a step, and says so.
 * @param {{step: string, packages: string[], suite?: string}} options `suite` is a backports suite
 * to take the packages from; it is added as a source of its own, with the address and key of the
 * machine's own source
 * @returns {string | undefined} why it failed; undefined when it is done
 */
export function installPackages({ step, packages, suite }) {
  const refusal = aptRefusal();
  if (refusal) {
    return refusal;
  }
  const from = suite ? ` from ${suite} (adds ${BACKPORTS})` : '';
  announce(step, `apt installs ${packages.join(' ')}${from}; SHARDWEAVE_NO_APT=1 refuses`);
  if (suite && !existsSync(BACKPORTS)) {
    const source = backportsSource(suite);
    if (!source) {
      return `no Debian source with a key was found to take ${suite} from`;
    }
    const draft = join(tmpdir(), `shardweave-${process.pid}.sources`);
    writeFileSync(draft, source);
    const copied = asRoot(['install', '-m', '644', draft, BACKPORTS]);
    if (copied) {
      return copied;
    }
  }
  const lock = ['-o', `DPkg::Lock::Timeout=${LOCK_WAIT_S}`];
  return (
    asRoot(['apt-get', ...lock, '-q', 'update']) ??
    asRoot([
      ...['apt-get', ...lock, '-q', '-y', '--no-install-recommends', 'install'],
      ...(suite ? ['-t', suite] : []),
      ...packages,
    ])
  );
}

/** The first stanza of the machine's own Debian source, with another suite. */
function backportsSource(suite) {
  const release = suite.replace(/-backports$/, '');
  const stanzas = readdirSync(SOURCES)
    .filter((name) => name.endsWith('.sources'))
    .flatMap((name) => readFileSync(join(SOURCES, name), 'utf8').split(/\n\s*\n/));
  const field = (stanza, name) => new RegExp(`^${name}:\\s*(.+)$`, 'mi').exec(stanza)?.[1];
  const own = stanzas.find((stanza) => field(stanza, 'Suites')?.split(/\s+/).includes(release));
  if (!own) {
    return undefined;
  }
  const key = field(own, 'Signed-By');
  const lines = [
    'Types: deb',
    `URIs: ${field(own, 'URIs')}`,
    `Suites: ${suite}`,
    'Components: main',
  ];
  return `${[...lines, ...(key ? [`Signed-By: ${key}`] : [])].join('\n')}\n`;
}

function asRoot(command) {
  const whole = process.getuid() === 0 ? command : ['sudo', '-n', ...command];
  const environment = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
  const result = spawnSync(whole[0], whole.slice(1), {
    env: environment,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    maxBuffer: 64 << 20,
  });
  if (result.status === 0) {
    return undefined;
  }
  const output = `${result.stdout ?? ''}${result.stderr ?? result.error?.message ?? ''}`.trim();
  const error = output.split('\n').findLast((line) => /^E:|error/i.test(line));
  return `${command[0]} failed: ${error ?? output.split('\n').at(-1)}`;
}
