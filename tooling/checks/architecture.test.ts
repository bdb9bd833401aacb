// The arrows between packages say who may import whom. Each import must also be declared.
import { readFileSync } from 'node:fs';
import { join, posix } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ARROWS, type Arrows, CIRCLES_OF_TYPES, drawArrows } from './arrows.ts';
import {
  circlesAmong,
  importsOf,
  neighboursOf,
  packageOf,
  ROOT,
  roomOf,
  roomsOf,
  sourceFiles,
  type WorkspacePackage,
  workspacePackages,
} from './workspace.ts';

const SCOPE = '@shardweave/';

/**
 * Packages that a program must have once. Two copies would have tensors that do not know each
 * other.
 */
const ONE_COPY = ['tensor-core', 'nn', 'collectives'].map((name) => SCOPE + name);

/**
 * Packages that may have circles of imports of types. A tensor knows its device, which makes
 * tensors; a module knows its deferred parameters; a call knows its arrivals.
 */
const HAVE_CIRCLES_OF_TYPES = ['tensor-core', 'nn', 'collectives'];

/** The packages whose rooms docs/architecture.md draws. */
const DRAWN = ['tensor-core', 'nn', 'collectives', 'fsdp', 'ddp-buckets', 'offload', 'trainer'];

const found = workspacePackages();

describe.each(found.map((one) => [one.shortName, one] as const))('%s', (name, one) => {
  it('imports only the packages its arrows allow', () => {
    const allowed = (ARROWS[name] ?? []).map((target) => SCOPE + target);
    const strays = importsIn(one).filter(
      ({ target }) =>
        target.startsWith(SCOPE) && target !== one.manifest.name && !allowed.includes(target),
    );
    expect(strays).toEqual([]);
  });

  it('declares in package.json every package it imports', () => {
    const { dependencies, peerDependencies, optionalDependencies, devDependencies } = one.manifest;
    // The build of an app packs what its devDependencies bring; that of a library packs nothing.
    const packed = one.manifest.bin === undefined ? {} : devDependencies;
    const declared = Object.keys({
      ...dependencies,
      ...peerDependencies,
      ...optionalDependencies,
      ...packed,
    });
    const strays = importsIn(one).filter(
      ({ target }) => target !== one.manifest.name && !declared.includes(target),
    );
    expect(strays).toEqual([]);
  });

  it('reaches no file outside its folder', () => {
    const strays = sourceFiles(one).flatMap((path) =>
      importsOf(path)
        .filter((specifier) => specifier.startsWith('.'))
        .map((specifier) => posix.join(posix.dirname(path), specifier))
        .filter((target) => !target.startsWith(`${one.folder}/`))
        .map((target) => ({ path, target })),
    );
    expect(strays).toEqual([]);
  });

  it('has no files that import one another in a circle', () => {
    expect(circlesIn(one, { types: false })).toEqual([]);
    if (!HAVE_CIRCLES_OF_TYPES.includes(name)) {
      expect(circlesIn(one, { types: true })).toEqual([]);
    }
  });

  it('has no arrow between rooms that runs back up', () => {
    const circles = (options: { readonly types: boolean }) => {
      const rooms = roomsOf(one, options);
      return circlesAmong([...rooms.keys()], (room) => [...(rooms.get(room) ?? [])]);
    };
    expect(circles({ types: false })).toEqual([]);
    const known = CIRCLES_OF_TYPES.filter((circle) => circle.package === name);
    if (known.every(({ rooms }) => rooms !== 'any')) {
      expect(circles({ types: true })).toEqual(known.map(({ rooms }) => rooms));
    }
  });

  it('takes tensors, modules and groups as peers, so that there is one copy of each', () => {
    if (one.manifest.private || one.manifest.bin !== undefined) {
      return expect(one.folder).toMatch(/^apps\//);
    }
    const owned = Object.keys(one.manifest.dependencies ?? {});
    expect(owned.filter((target) => ONE_COPY.includes(target))).toEqual([]);
  });
});

describe('the workspace', () => {
  it('has an arrow for every package', () => {
    expect(found.length).toBeGreaterThan(0);
    expect(found.map(({ shortName }) => shortName).filter((name) => !ARROWS[name])).toEqual([]);
  });

  // `npx vitest run tooling/checks/architecture.test.ts -u` draws it anew.
  it('is drawn in docs/architecture.md as its arrows are', async () => {
    const path = join(ROOT, 'docs/architecture.md');
    const drawn = readFileSync(path, 'utf8').replace(
      /(?<=## Packages\n[\s\S]*?)```mermaid\n[\s\S]*?```/,
      () => drawArrows(ARROWS),
    );
    await expect(drawn).toMatchFileSnapshot(path);
  });

  // Drawn anew by the same command.
  it('has its rooms drawn in docs/architecture.md as their imports are', async () => {
    const path = join(ROOT, 'docs/architecture.md');
    const drawn = readFileSync(path, 'utf8').replaceAll(
      /(?<=^### (\S+)\n\n)```mermaid\n[\s\S]*?```/gm,
      (_, name) => drawArrows(foldersOf(found.find(({ shortName }) => shortName === name)!)),
    );
    expect([...drawn.matchAll(/^### (\S+)\n\n```mermaid/gm)].map(([, name]) => name)).toEqual(
      DRAWN,
    );
    await expect(drawn).toMatchFileSnapshot(path);
  });

  it('has no cycle among its arrows', () => {
    const seen = new Set<string>();
    const visit = (name: string, path: readonly string[]): void => {
      expect(path, `${[...path, name].join(' -> ')}`).not.toContain(name);
      if (seen.has(name)) {
        return;
      }
      for (const target of ARROWS[name] ?? []) {
        visit(target, [...path, name]);
      }
      seen.add(name);
    };
    for (const name of Object.keys(ARROWS)) {
      visit(name, []);
    }
    expect(seen.size).toBe(Object.keys(ARROWS).length);
  });
});

describe('fsdp', () => {
  it('has a tree and units that know the wrapper by their own interface alone', () => {
    const fsdp = found.find(({ shortName }) => shortName === 'fsdp')!;
    const rooms = sourceFiles(fsdp).filter((path) => /\/src\/(tree|unit)\//.test(path));
    expect(rooms.length).toBeGreaterThan(10);
    const isWrapper = (specifier: string) =>
      /\/(fully-sharded-data-parallel|is-fsdp)\.js$/.test(specifier);
    expect(rooms.filter((path) => importsOf(path).some(isWrapper))).toEqual([]);
  });
});

/**
 * What each folder of collectives may import of the others. All may import the files at the root.
 */
const ROOMS: Readonly<Record<string, readonly string[]>> = {
  endpoint: [],
  algorithms: ['endpoint'],
  group: ['algorithms', 'endpoint'],
  sockets: [],
  'transports/ws/heartbeat': ['generated', 'sockets'],
  'transports/ws/link': ['endpoint', 'sockets', 'transports/ws/heartbeat', 'transports/ws/wire'],
};

describe('collectives', () => {
  const collectives = found.find(({ shortName }) => shortName === 'collectives')!;
  const root = `${collectives.folder}/src`;

  it.each(Object.entries(ROOMS))('has a room %s that knows only %j', (room, known) => {
    const paths = sourceFiles(collectives).filter((path) => roomOf(collectives, path) === room);
    expect(paths.length).toBeGreaterThan(3);
    const strays = paths.flatMap((path) =>
      importsOf(path)
        .filter((specifier) => specifier.startsWith('.'))
        .map((specifier) => roomOf(collectives, posix.join(posix.dirname(path), specifier)))
        .filter((target) => target.includes('.') === false && target !== room)
        .filter((target) => !known.includes(target))
        .map((target) => `${path} imports ${target}`),
    );
    expect(strays).toEqual([]);
  });

  it('has a transport seam that knows no transport, and no engine of one', () => {
    const imported = importsOf(`${root}/transport.ts`);
    expect(imported).toEqual(['./call-signature.js', './failure.js']);
  });
});

/**
 * The folders of a package, each with those that it imports at run time, itself or by way of files
 * beside all folders.
 */
function foldersOf(one: WorkspacePackage): Arrows {
  const rooms = roomsOf(one, { types: false });
  const isFolder = (room: string) => !room.endsWith('.ts');
  const beyond = (room: string): string[] =>
    [...rooms.get(room)!].flatMap((target) => (isFolder(target) ? [target] : beyond(target)));
  return Object.fromEntries(
    [...rooms.keys()]
      .filter(isFolder)
      .sort()
      .map((room) => [room, [...new Set(beyond(room))].filter((target) => target !== room).sort()]),
  );
}

function circlesIn(one: WorkspacePackage, options: { readonly types: boolean }): string[][] {
  const paths = sourceFiles(one);
  const neighbours = new Map(paths.map((path) => [path, neighboursOf(path, options)]));
  return circlesAmong(paths, (path) => neighbours.get(path) ?? []);
}

function importsIn(one: WorkspacePackage) {
  return sourceFiles(one).flatMap((path) =>
    importsOf(path)
      .filter((specifier) => !specifier.startsWith('.') && !specifier.startsWith('node:'))
      .map((specifier) => ({ path, target: packageOf(specifier) })),
  );
}
