// Print what a search of the built site finds: `node tools/search_site.js build/site TERM…`, JSON of ten locations by term.
// It runs the theme's own search worker, with the messages that its pages send.
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...terms] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const { config, docs } = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3];
const handlers = [], found = {};
const send = (type, data) => setImmediate(() => handlers.forEach((handle) => handle({ data: { type, data } })));
let term;
const next = () => {
  term = terms.shift();
  if (term !== undefined) return send(QUERY, term);
  console.log(JSON.stringify(found));
  process.exit(0);
};
const scope = {
  console, setTimeout, location: { href: "http://site/" }, importScripts: () => {},
  addEventListener: (name, handle) => handlers.push(handle),
  postMessage: (message) => {
    if (message.type === RESULT) found[term] = message.data.items.slice(0, 10).map((group) => group[0].location);
    if (message.type === READY || message.type === RESULT) next();
  },
};
scope.self = scope;
vm.createContext(scope);
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), scope);
send(SETUP, { config, docs, options: { suggest: true } });
setTimeout(() => { console.error("the worker did not answer"); process.exit(1); }, 20000);
