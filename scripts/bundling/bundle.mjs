// Makes libraries of package-lock.json into one file each, with the licences of all that is in it. Run by
// scripts/bundle, in a folder that has this one's files and node_modules.
import { build } from "esbuild";
import { copyFile, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

const LIBRARIES = ["codemirror", "cypher-language", "cytoscape"];
// Packages whose code others have in their own files.
const INLINED = { "node_modules/cytoscape-dagre": ["node_modules/@dagrejs/dagre", "node_modules/@dagrejs/graphlib"] };
const [out] = process.argv.slice(2);
const PAGES = join(out, "stagedb", "serve", "static");
const TESTS = join(out, "tests", "serve");

const smaller = {
  name: "smaller",
  setup(made) {
    made.onResolve({ filter: /\/semanticAnalysis\.js$/ }, () => ({ path: join(process.cwd(), "no-semantic-analysis.js") }));
  },
};

async function packageOf(folder) {
  return JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
}

async function licenceOf(folder) {
  const found = (await readdir(folder)).find((name) => /^licen[cs]e(\.|$)/i.test(name));
  if (found === undefined) throw new Error(`${folder} has no licence text`);
  return (await readFile(join(folder, found), "utf8")).trim();
}

// The folders of packages that a bundle has code of.
function packagesIn(metafile) {
  const [made] = Object.values(metafile.outputs);
  const folders = Object.entries(made.inputs)
    .filter(([path, { bytesInOutput }]) => bytesInOutput > 0 && path.startsWith("node_modules/"))
    .map(([path]) => path.match(/^(?:.*\/)?node_modules\/(?:@[^/]+\/)?[^/]+/)[0]);
  return [...new Set(folders.flatMap((folder) => [folder, ...(INLINED[folder] ?? [])]))].sort();
}

async function bundle(name) {
  const made = await build({
    entryPoints: [`${name}.js`], bundle: true, minify: true, format: "esm", target: "es2022", charset: "utf8",
    legalComments: "none", metafile: true, write: false, outfile: `${name}.min.js`, plugins: [smaller],
  });
  const folders = packagesIn(made.metafile);
  const parts = await Promise.all(folders.map(async (folder) => {
    const { name: of, version, license } = await packageOf(folder);
    return { title: `${of} ${version} (${license})`, text: await licenceOf(folder) };
  }));
  const head = `/* Made by scripts/bundle from: ${parts.map((part) => part.title).join(", ")}.\n   Licences: ${name}.LICENSE.txt */\n`;
  await writeFile(join(PAGES, `${name}.min.js`), head + made.outputFiles[0].text);
  await writeFile(join(PAGES, `${name}.LICENSE.txt`), parts.map((part) => `${part.title}\n\n${part.text}\n`).join("\n\n"));
}

await mkdir(PAGES, { recursive: true });
await mkdir(TESTS, { recursive: true });
for (const name of LIBRARIES) await bundle(name);
const axe = join("node_modules", "axe-core");
await copyFile(join(axe, "axe.min.js"), join(TESTS, "axe.min.js"));
await copyFile(join(axe, "LICENSE"), join(TESTS, "axe.LICENSE.txt"));
