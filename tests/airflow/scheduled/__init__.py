"""The provider in a whole Airflow. A package, so that the fixture `airflow` ends with the last of these tests."""
