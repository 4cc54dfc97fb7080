"""What straggler is made of, what it needs, and how its native core is built.

Install it with `sudo make install`: a bare `pip install` cannot bring Mininet, Open vSwitch or the build constraint
that Ryu needs (see vagrant/constraints.txt).
"""

from setuptools import find_packages, setup

# Lower bounds are what the code uses; upper bounds and the pins that Ryu needs are in vagrant/constraints.txt.
REQUIREMENTS = [
    "cffi>=1.15",
    "click>=8.1",
    "eventlet>=0.38.2",
    "jinja2>=3.0",
    "jsonschema>=4.0",
    "matplotlib>=3.8",
    "numpy>=1.24",
    "pyarrow>=14",
    "rich>=13",
    "ryu==4.34",
    "scapy>=2.5",
    "setuptools>=66.1",  # Ryu imports pkg_resources at run time
]
DEV_REQUIREMENTS = [
    "hypothesis>=6.90",
    "mypy>=1.8",
    "pytest>=8",
    "ruff>=0.6",
    "types-cffi",
    "types-jsonschema",
]

setup(
    name="straggler",
    version="0.1.0",
    description="An AI back-end fabric in slow motion, on real packets and Open vSwitch: who is late, and why",
    license="Apache-2.0",
    python_requires=">=3.10",
    # Naming the root makes an editable install a plain path entry, which mypy and every tool understands.
    package_dir={"": "."},
    packages=find_packages(include=["labs", "labs.*", "controllers", "controllers.*", "topologies", "topologies.*"]),
    package_data={
        "topologies.fabricd": ["core/*.[ch]", "io/*.[ch]", "*.py"],
        "labs": ["exercises/*/*", "plots/*.j2", "measure/*.json"],
    },
    install_requires=REQUIREMENTS,
    extras_require={"dev": DEV_REQUIREMENTS},
    cffi_modules=["topologies/fabricd/build_core.py:ffibuilder"],
    entry_points={
        "console_scripts": ["straggler = labs.cli:main"],
        "straggler.policies": [
            "ecmp = controllers.policies.ecmp:POLICY",
            "group = controllers.policies.group:POLICY",
            "flowlet = controllers.policies.flowlet:POLICY",
            "dlb = controllers.policies.dlb:POLICY",
            "spray = controllers.policies.spray:POLICY",
        ],
    },
    zip_safe=False,
)
